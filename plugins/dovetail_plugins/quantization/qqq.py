"""qqq checkpoints: 4-bit weights in the order of one GPU product, for 8-bit activations.

Per layer `B` int32 [I / 16, 2 O], tiles of 16 inputs by 64 outputs in the order of `tile_order`,
eight values a word; `s_channel` [1, O] and, in groups of 128, `s_group` [I / 128, O], both in the
order of that product. Without groups a weight is value * 16 * s_channel, value from -8 to 7; with
them (value - 8) * s_group * s_channel, value from 0 to 15. That product rounds
(value - 8) * s_group to 8 bits, which is not done here. Source: https://github.com/HandH1998/QQQ,
qlinear_marlin.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail.interfaces.spec import ModelSpec
from dovetail_plugins.quantization._checkpoint_method import CheckpointMethod
from dovetail_plugins.quantization._grouped import GroupedOptions

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

TILE = 16
LANES = 32
KEPT = 128
"""Inputs to a scale in memory where the checkpoint has one an output."""
WORD_ORDERS = {"channel": (4, 0, 5, 1, 6, 2, 7, 3), "group": (0, 2, 4, 6, 1, 3, 5, 7)}


class Qqq(CheckpointMethod):
    """4-bit weights, with 8-bit activations as the method means them or float ones."""

    info = Info(
        summary="qqq checkpoints: 4-bit weights, 8-bit activations",
        source="https://github.com/HandH1998/QQQ",
    )
    Options = GroupedOptions
    stored_as = ("qqq",)
    ignored = (".workspace", ".reduce_buffer")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.group = int(self.config.get("group_size", -1))
        bits = self.config.get("wbits", self.config.get("bits", 4))
        if bits != 4:
            raise self.refuse(f"wbits {bits} is not read; 4 is.")
        if self.group not in (-1, KEPT):
            raise self.refuse(f"group_size {self.group} is not read; -1 and {KEPT} are.")

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tiles and the scales."""
        rows = spec.out_size
        tiles = StoredTensor(name="B", shape=(spec.in_size // TILE, 2 * rows), dtype="int32",
                             output_axis=1, input_axis=0)  # fmt: skip
        channel = StoredTensor(name="s_channel", shape=(1, rows), dtype="float32", output_axis=1)
        if not self._has_groups(spec.in_size):
            return tiles, channel
        shape = (spec.in_size // self.group, rows)
        return tiles, channel, StoredTensor(
            name="s_group", shape=shape, dtype="float16", output_axis=1, input_axis=0
        )

    def _has_groups(self, in_size: int) -> bool:
        return self.group > 0

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._grouped import ACTIVATIONS
        from dovetail_kernels.gemm.weight import Weight

        channel = in_order(tensors["s_channel"], single_order())
        is_grouped = "s_group" in tensors
        values = untile(tensors["B"], is_grouped=is_grouped).T.contiguous()
        outputs, inputs = values.shape
        if is_grouped:
            scales = in_order(tensors["s_group"], group_order()).float() * channel
        else:
            values = values ^ 8  # two's complement of four bits, moved up by 8
            scales = channel * 16
        return _kept(values, scales.T, ACTIVATIONS[self.options.activations])
