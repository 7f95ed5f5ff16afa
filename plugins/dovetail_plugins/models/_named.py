"""Checkpoints that name the parts of the shared decoder otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.layers.linear import GROUPS


def prefixes(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return prefixes of names that follow "transformer.", or of bare names if the checkpoint was
    saved without a head."""
    return tuple((f"{start}{old}", new) for start in ("transformer.", "") for old, new in pairs)


def leaves(names: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return renames of whole words of names."""
    return tuple((f".{old}.", f".{new}.") for old, new in names)


MEGATRON = leaves(
    {
        "self_attention.query_key_value": "self_attn.query_key_value",
        "self_attention.dense": "self_attn.o_proj",
        "mlp.dense_h_to_4h": "mlp.up_proj",
        "mlp.dense_4h_to_h": "mlp.down_proj",
    }.items()
)
"""Names of models that come from Megatron."""
FUSED_BY_GROUP = {"query_key_value": ("qkv_proj", GROUPS)}
"""Each kv head's queries, key and value are stored consecutively."""
