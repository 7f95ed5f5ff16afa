"""qqq checkpoints: 4-bit weights in the order of one GPU product, for 8-bit activations.

Per layer `B` int32 [I / 16, 2 O], tiles of 16 inputs by 64 outputs in the order of `tile_order`,
eight values a word; `s_channel` [1, O] and, in groups of 128, `s_group` [I / 128, O], both in the
order of that product. Without groups a weight is value * 16 * s_channel, value from -8 to 7; with
them (value - 8) * s_group * s_channel, value from 0 to 15. That product rounds
(value - 8) * s_group to 8 bits, which is not done here. Source: https://github.com/HandH1998/QQQ,
qlinear_marlin.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import CheckpointMethod
from dovetail_plugins.layers.stored.rounding import TOKEN, IntegerOptions
from dovetail_plugins.quantization._estimates import integers_estimate

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

TILE = 16
LANES = 32
GROUPS = (-1, 128)
WORDS = {False: (4, 0, 5, 1, 6, 2, 7, 3), True: (0, 2, 4, 6, 1, 3, 5, 7)}
"""Whether there are groups -> which of a lane's eight values each nibble of a word is."""


class Qqq(CheckpointMethod):
    """4-bit weights, with 8-bit activations as the method means them: a scale a token."""

    info = Info(
        summary="qqq checkpoints: 4-bit weights, 8-bit activations",
        source="https://github.com/HandH1998/QQQ",
    )
    Options = IntegerOptions
    stored_as = ("qqq",)
    ignored = (".workspace", ".reduce_buffer")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.group = int(self.config.get("group_size", -1))
        bits = self.config.get("wbits", self.config.get("bits", 4))
        if bits != 4:
            raise self.refuse(f"wbits {bits} is not read; 4 is.")
        if self.group not in GROUPS:
            raise self.refuse(f"group_size {self.group} is not read; -1 and {GROUPS[1]} are.")

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer of tiles."""
        values, scales = (layer.tensors.get(name) for name in ("B", "s_channel"))
        if values is None or scales is None:
            return None
        return integers_estimate(
            values.shape[1] // 2, values.shape[0] * TILE, bits=4, scales=scales, has_zeros=False,
            packs=packs, group=max(self.group, 0),
            takes=TOKEN,
        )  # fmt: skip

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the tiles and the scales."""
        rows, inputs = spec.out_size, spec.in_size
        stored = [
            StoredTensor(name="B", shape=(inputs // TILE, 2 * rows), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="s_channel", shape=(1, rows), dtype="float32", output_axis=1),
        ]  # fmt: skip
        if self.group > 0:
            shape = (spec.num_groups(self.group), rows)
            stored.append(StoredTensor(name="s_group", shape=shape, dtype="float16",
                                      output_axis=1, input_axis=0))  # fmt: skip
        return tuple(stored)

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return all tensors but empty ones: without groups `s_group` has no entries."""
        return (found for found in tensors if found[1].numel())

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        import torch

        from dovetail_plugins.quantization._grouped import grouped_weight
        from dovetail_plugins.quantization._int32 import unpack

        is_grouped = self.group > 0
        values = unpack(tensors["B"], 4, axis=1)
        values = put_back(values, tile_order(is_grouped=is_grouped))
        tiles = values.view(len(values), -1, TILE, TILE).transpose(1, 2)
        values = tiles.reshape(len(values) * TILE, -1).T.contiguous()
        scales = put_back(tensors["s_channel"], channel_order())
        if is_grouped:
            scales = scales * put_back(tensors["s_group"], group_order()).float()
        else:
            values, scales = values ^ 8, scales * 16  # two's complement, moved up by 8
        scales = scales.T.contiguous()
        unpacked_weight = grouped_weight(values, scales, torch.full_like(scales, 8), bits=4)
        return replace(unpacked_weight, has_token_scales=True)


def put_back(mixed: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Return the columns in original order; `order` is a run's. Shapes: [R, N]"""
    import torch

    runs = mixed.reshape(len(mixed), -1, len(order))
    found = torch.empty_like(runs)
    found[..., order] = runs
    return found.view(mixed.shape)


def tile_order(*, is_grouped: bool) -> list[int]:
    """Return the positions of stored values in four tiles of [16 inputs, 16 outputs]."""
    return [
        TILE * (4 * (lane % 4) + value % 4) + lane // 4 + 8 * (value // 4) + TILE * TILE * tile
        for lane in range(LANES)
        for tile in range(4)
        for value in WORDS[is_grouped]
    ]


def channel_order() -> list[int]:
    """Return the outputs of scales per output, in stored order within runs of 32."""
    return [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


def group_order() -> list[int]:
    """Return the outputs of scales per group, in stored order within runs of 64."""
    return [i + 8 * j for i in range(8) for j in range(8)]
