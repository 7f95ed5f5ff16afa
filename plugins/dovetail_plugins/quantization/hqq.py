"""hqq checkpoints: 1, 2, 3, 4 or 8 bits in groups, with zero points that are not integers.

Per layer `W_q`, and `scale` and `zero` of every group; a weight is (value - zero) * scale. With
axis 1 groups are inputs of one output, and values, made a matrix [groups, G], are packed from its
rows: row r of n packed ones holds rows r, n + r, 2 n + r, ..., the first in the highest bits; 3
bits ten to an int32. With axis 0 groups run over outputs, which no kernel has a format for: such
layers are stored in bfloat16. Values are unpacked while loading and packed for the kernels again; 1
to 4 bits take 4. Source: https://github.com/mobiusml/hqq, version 0.2.8.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod, listed
from dovetail_plugins.layers.stored.layer_names import one_for_parts
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._estimates import (
    bytes_estimate,
    integers_estimate,
    plain_estimate,
)

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BITS = (1, 2, 3, 4, 8)
PIECES = ("W_q", "scale", "zero")
WEIGHTS = "weight_quant_params"
META = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float",
    "quant_scale", "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict",
    "stores_quant_config", "channel_wise", "optimize", "round_zero",
)  # fmt: skip
"""Extra tensors of the library; config.json has the same information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HqqLayout:
    """One layer, its values unpacked. `group` 0: all inputs."""

    bits: int
    group: int
    axis: int

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the values and the groups' scales and zero points, or a bfloat16 weight."""
        rows, inputs = spec.out_size, spec.in_size
        dtype = "uint8" if self.axis else "bfloat16"
        values = StoredTensor(
            name="W_q", shape=(rows, inputs), dtype=dtype, output_axis=0, input_axis=1
        )
        if not self.axis:
            return (values,)
        shape = (rows, spec.num_groups(self.group))
        scale, zero = (
            StoredTensor(name=name, shape=shape, dtype="float32", output_axis=0, input_axis=1)
            for name in PIECES[1:]
        )
        return values, scale, zero

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_kernels.gemm.weight import Weight
        from dovetail_plugins.quantization._float_formats import half_if_exact
        from dovetail_plugins.quantization._grouped import grouped_weight
        from dovetail_plugins.quantization._int8_formats import int8_weight

        values = tensors["W_q"]
        if not self.axis:
            return Weight(format="bfloat16", values=values)
        scale, zero = tensors["scale"], tensors["zero"]
        if self.bits == 8:
            signed = (values.short() - 128).char()
            return int8_weight(signed, scale, zero - 128)
        scale, zero = half_if_exact(scale, zero)
        weight = grouped_weight(values, scale, zero, bits=self.bits)
        assert isinstance(weight, Weight)
        return weight

    def unpacked(self, found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a layer's tensors as `tensors` has them, in one row."""
        import torch

        scale, zero = (found[name].float() for name in PIECES[1:])
        packed = found["W_q"].view(torch.int32 if self.bits == 3 else torch.uint8)
        per = 10 if self.bits == 3 else 8 // self.bits
        places = [self.bits * place for place in reversed(range(per))]
        values = torch.cat([packed >> place & (2**self.bits - 1) for place in places])
        if self.axis:
            values = values[: scale.numel()]
            values = values.to(torch.uint8)
            return {"W_q": values.flatten(), "scale": scale.flatten(), "zero": zero.flatten()}
        values = values[: self.group] if self.group else values
        return {"W_q": ((values.float() - zero) * scale).bfloat16().flatten()}


class Hqq(StoredMethod):
    """Half-quadratic quantization."""

    info = Info(
        summary="hqq checkpoints, 1 to 8 bits in groups; axis 0 kept in bfloat16",
        source="https://github.com/mobiusml/hqq",
    )
    Options = IntegerOptions
    stored_as = ("hqq",)
    ignored = tuple(f".{word}" for word in META)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.skipped += listed(self.config.get("skip_modules") or ())
        quant_config = self.config.get("quant_config")
        if not isinstance(quant_config, dict) or not quant_config:
            raise self.refuse("quant_config is missing.")
        self.told: Mapping[str, Any] = quant_config

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer of packed values."""
        layout = self._layout_of(layer.name)
        packed, scale, zero = (layer.tensors.get(name) for name in PIECES)
        if layout is None or packed is None or scale is None or zero is None:
            return None
        per, word_bytes = (10, 4) if layout.bits == 3 else (8 // layout.bits, 1)
        rows, columns = packed.shape[0], packed.num_bytes // packed.shape[0] // word_bytes
        if not layout.axis:
            return plain_estimate((layout.group or rows * per) * columns, "bfloat16")
        groups = scale.num_values
        if layout.bits == 8 and columns % 8 == 0:
            estimate = bytes_estimate(groups * columns, groups, has_zeros=True)
            return replace(estimate, format=f"int8, groups of {columns}", outputs=0)
        return integers_estimate(
            1, groups * columns, bits=layout.bits, scales=scale, has_zeros=True, packs=packs,
            group=columns,
        )  # fmt: skip

    def layout(self, spec: LinearSpec) -> StorageLayout | None:
        """Return the layer's layout, which quant_config has for all layers or by their last
        words."""
        return one_for_parts(spec.name, self._layout_of, None, where=self.where)

    def _layout_of(self, name: str) -> HqqLayout | None:
        layout: Any = self.told
        if WEIGHTS not in layout:
            layout = next((v for key, v in layout.items() if f".{name}".endswith(f".{key}")), None)
        if not layout:
            return None
        params = layout.get(WEIGHTS) or {}
        bits, group = params.get("nbits", 4), params.get("group_size") or 0
        if bits not in BITS:
            raise self.refuse(
                f"{WEIGHTS}.nbits {bits} is not read; {', '.join(map(str, BITS))} are."
            )
        for other in ("scale_quant_params", "zero_quant_params"):
            if layout.get(other):
                raise self.refuse(f"{other} is not read: scales and zero points must be floats.")
        return HqqLayout(bits=int(bits), group=int(group), axis=int(params.get("axis", 0)))

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return tensors with every layer's values unpacked."""
        pending: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors:
            layer, _, leaf = name.rpartition(".")
            layout = self._layout_of(layer) if leaf in PIECES else None
            if layout is None:
                yield name, tensor
                continue
            pending[layer][leaf] = tensor
            if len(pending[layer]) == len(PIECES):
                unpacked = layout.unpacked(pending.pop(layer))
                yield from ((f"{layer}.{word}", unpacked[word]) for word in unpacked)
        for layer, parts in pending.items():
            yield from ((f"{layer}.{leaf}", tensor) for leaf, tensor in parts.items())
