"""GPTQ checkpoints: 2, 3, 4 or 8 bits in groups of inputs, in any order of the inputs.

Per layer `qweight` int32 [I * bits / 32, O], `qzeros` int32 [I / G, O * bits / 32], `scales`
[I / G, O] and `g_idx` int32 [I], the group of every input. Format "gptq" stores zero points less
one, "gptq_v2" as they are. Source: AutoGPTQ and GPTQModel, quantize_config.json and the layout of
their packed linear layers (https://github.com/ModelCloud/GPTQModel).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail.interfaces.spec import ModelSpec
from dovetail_plugins.quantization._checkpoint_method import CheckpointMethod
from dovetail_plugins.quantization._grouped import GroupedOptions

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BITS = (2, 3, 4, 8)


class Gptq(CheckpointMethod):
    """One layout for all widths."""

    info = Info(
        summary="GPTQ checkpoints, 2 to 8 bits in groups",
        source="https://github.com/ModelCloud/GPTQModel",
    )
    Options = GroupedOptions
    stored_as = ("gptq",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.bits = int(self.config.get("bits", 4))
        self.group = int(self.config.get("group_size", 128))
        self.keeps_zeros = self.config.get("checkpoint_format", "gptq") == "gptq_v2"
        if self.bits not in BITS:
            known = ", ".join(map(str, BITS))
            raise self.refuse(f"{self.bits} bits are not read; {known} are.")

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return qweight, qzeros, scales and g_idx."""
        groups = 1 if self.group < 0 else -(-spec.in_size // self.group)
        words = self.bits * spec.out_size // 32
        rows = self.bits * spec.in_size // 32
        return (
            StoredTensor(name="qweight", shape=(rows, spec.out_size), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="qzeros", shape=(groups, words), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="scales", shape=(groups, spec.out_size), dtype="float16",
                         output_axis=1, input_axis=0),
            StoredTensor(name="g_idx", shape=(spec.in_size,), dtype="int32", input_axis=0,
                         is_per_part=True, default=-1),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix, its inputs in the order of their groups."""
        from dovetail_plugins.quantization._grouped import grouped_weight
        from dovetail_plugins.quantization._int32 import unpack

        values = unpack(tensors["qweight"], self.bits, axis=0).T
        zeros = unpack(tensors["qzeros"], self.bits, axis=1).T.float()
        order = group_order(tensors["g_idx"], values.shape[1] // len(tensors["scales"]))
        if order is not None:
            values = values[:, order]
        return grouped_weight(
            values.contiguous(),
            tensors["scales"].T.contiguous(),
            zeros if self.keeps_zeros else zeros + 1,
            bits=self.bits,
            activations=self.options.activations,
            order=order,
        )


def group_order(group_of: torch.Tensor, group: int) -> torch.Tensor | None:
    """Return the inputs sorted by group, or None where they lie in groups already.

    Shapes: group_of [I] (-1 everywhere: not told) -> [I] int64
    """
    import torch

    in_place = torch.arange(len(group_of)) // group
    if bool((group_of < 0).all()) or torch.equal(group_of.long(), in_place):
        return None
    return torch.argsort(group_of, stable=True)
