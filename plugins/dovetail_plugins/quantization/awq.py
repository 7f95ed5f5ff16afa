"""AWQ checkpoints: 4 bits in groups of inputs, eight outputs in a word in AWQ's own order.

Per layer `qweight` int32 [I, O / 8], `qzeros` int32 [I / G, O / 8] and `scales` [I / G, O]; value i
of a word is at place (0, 4, 1, 5, 2, 6, 3, 7)[i]. Source: AutoAWQ, version "gemm"
(https://github.com/casper-hansen/AutoAWQ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import StoredMethod
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._estimates import qweight_estimate

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqLayout:
    """One layer in AWQ's layout. `group` -1: all inputs."""

    group: int

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return qweight, qzeros and scales."""
        groups = spec.num_groups(self.group)
        words = spec.out_size // 8
        return (
            StoredTensor(name="qweight", shape=(spec.in_size, words), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="qzeros", shape=(groups, words), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="scales", shape=(groups, spec.out_size), dtype="float32",
                         output_axis=1, input_axis=0),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._grouped import grouped_weight
        from dovetail_plugins.quantization._int32 import unpack

        return grouped_weight(
            unpack(tensors["qweight"], 4, axis=1, order=PLACES).T.contiguous(),
            tensors["scales"].T.contiguous(),
            unpack(tensors["qzeros"], 4, axis=1, order=PLACES).T.float(),
            bits=4,
        )


class Awq(StoredMethod):
    """4-bit groups, zero points per group."""

    info = Info(
        summary="AWQ checkpoints, 4 bits in groups",
        source="https://github.com/casper-hansen/AutoAWQ",
    )
    Options = IntegerOptions
    stored_as: ClassVar[tuple[str, ...]] = ("awq",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.usual = AwqLayout(
            group=int(self.config.get("group_size", self.config.get("q_group_size", 128))),
        )
        if int(self.config.get("bits", self.config.get("w_bit", 4))) != 4:
            raise self.refuse("only 4 bits are read.")
        version = str(self.config.get("version", "gemm")).lower()
        if version != "gemm":
            raise self.refuse(f'the layout "{version}" is not read; "gemm" is.')

    def layout(self, spec: LinearSpec) -> AwqLayout:
        """Return the one layout of all layers."""
        return self.usual

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer in AWQ's layout."""
        return qweight_estimate(
            layer,
            is_symmetric=not self.config.get("zero_point", True),
            packs=packs,
        )
