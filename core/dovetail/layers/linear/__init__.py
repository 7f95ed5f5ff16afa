"""Linear layers divided over ranks, and the place of checkpoint tensors in their matrices."""

from dovetail.layers.linear.sharded import (
    FOUR_BLOCKS,
    GROUPS,
    ActivatedLinear,
    ColumnParallelLinear,
    GatedLinear,
    Linear,
    MergedActivatedLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedActivatedLinear,
    ReplicatedLinear,
    RowParallelLinear,
    attention_linears,
    empty_bias,
    even_part,
    linear_spec,
    split_heads,
)

__all__ = [
    "FOUR_BLOCKS", "GROUPS", "ActivatedLinear", "ColumnParallelLinear", "GatedLinear", "Linear",
    "MergedActivatedLinear", "MergedColumnParallelLinear", "QKVParallelLinear",
    "ReplicatedActivatedLinear", "ReplicatedLinear", "RowParallelLinear", "attention_linears",
    "empty_bias", "even_part", "linear_spec", "split_heads",
]  # fmt: skip
