"""torchao checkpoints in safetensors: int8, float8 and 4 bits in groups, as `quant_type` says.

A weight is split into several tensors: `_weight_qdata`, `_weight_scale` and, except for float8,
`_weight_zero_point`. Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig: qdata int8
[O, I], scale [O, 1]. Float8WeightOnlyConfig, Float8DynamicActivationFloat8WeightConfig: qdata e4m3
[O, I], scale [O, 1] or [1, 1]. IntxWeightOnlyConfig, Int8DynamicActivationIntxWeightConfig: qdata
int8 [O, I] of 1 to 8 bits, scale [O, I / G]. Int4WeightOnlyConfig: qdata uint8 [O, I / 2], the
first of two in the low bits, scale and zero_point [I / G, O], value * scale + zero_point.
Activations are int8 per token with Int8DynamicActivationInt8WeightConfig, e4m3 per token with
Float8DynamicActivationFloat8WeightConfig on a GPU that can; with the others, as the option says.
Pickled checkpoints of older versions are not read. Source: torchao 0.18, prototype/safetensors and
quantization/quantize_/workflows (https://github.com/pytorch/ao).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer, TensorHeader
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored import rounding
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod
from dovetail_plugins.quantization._estimates import bytes_estimate, integers_estimate
from dovetail_plugins.quantization._float8_rounding import rounds

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

QDATA, SCALE, ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
INT8 = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
FLOAT8 = ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig")
INTX = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")
INT4 = "Int4WeightOnlyConfig"
DYNAMIC_INT8, DYNAMIC_FLOAT8 = INT8[1], FLOAT8[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """int8 or e4m3 values. `group` 0: one scale an output; `is_whole`: one a matrix. `bits`: how
    many of them are used. `is_meant_float8`: activations become e4m3 if a device supports it."""

    dtype: str
    bits: int = 8
    group: int = 0
    is_whole: bool = False
    has_token_scales: bool = False
    is_meant_float8: bool = False
    has_float8_activations: bool = False

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return values, scales and zero points."""
        rows, inputs = spec.out_size, spec.in_size
        shape = () if self.is_whole else (rows, spec.num_groups(self.group))
        output, inner = (None, None) if self.is_whole else (0, 1)
        values = StoredTensor(
            name=QDATA, shape=(rows, inputs), dtype=self.dtype, output_axis=0, input_axis=1
        )
        scale, zero = (
            StoredTensor(name=name, shape=shape, dtype=dtype, output_axis=output, input_axis=inner,
                         is_per_part=self.is_whole, default=default)
            for name, dtype, default in ((SCALE, "float32", None), (ZERO, "int8", 0.0))
        )  # fmt: skip
        return (values, scale, zero) if self.dtype == "int8" else (values, scale)

    def memory_estimate(
        self, values: TensorHeader, scale: TensorHeader, *, packs: bool
    ) -> StorageEstimate:
        """Return the estimate of such a layer. Zero points are taken to be 0 throughout."""
        outputs, inputs = values.shape
        groups = 1 if self.is_whole else scale.num_values // outputs
        if self.dtype == "int8" and self.bits <= 4:
            return integers_estimate(
                outputs, inputs, bits=4, scales=scale, has_zeros=False, packs=packs,
                group=inputs // groups,
            )  # fmt: skip
        if self.dtype == "int8":
            takes = rounding.TOKEN if self.has_token_scales else rounding.INT8
            return bytes_estimate(values.num_values, outputs, groups=groups, takes=takes)
        takes = rounding.FLOAT8 if self.is_meant_float8 else rounding.BFLOAT16
        estimate = bytes_estimate(values.num_values, outputs, groups=groups)
        return replace(estimate, format="float8", takes=takes)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        import torch

        from dovetail_plugins.quantization._float_formats import float8_weight, half_if_exact
        from dovetail_plugins.quantization._grouped import grouped_weight
        from dovetail_plugins.quantization._int8_formats import int8_weight

        values, scale = tensors[QDATA], tensors[SCALE]
        if self.dtype != "int8":
            return float8_weight(values, scale, has_float8_activations=self.has_float8_activations)
        zero = tensors[ZERO].float()
        if self.is_whole:
            scale, zero = (t.reshape(1, 1).expand(len(values), 1) for t in (scale, zero))
        if self.bits <= 4:
            unsigned = (values + 8).to(torch.uint8)
            (scale,) = half_if_exact(scale)
            return grouped_weight(unsigned, scale, zero + 8, bits=4)
        is_centred = not bool(zero.any())
        unpacked_weight = int8_weight(values, scale, None if is_centred else zero)
        return replace(unpacked_weight, has_token_scales=self.has_token_scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nibbles:
    """4 bits in groups, two values a byte."""

    group: int

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return values, scales and offsets."""
        rows, inputs = spec.out_size, spec.in_size
        values = StoredTensor(
            name=QDATA, shape=(rows, inputs // 2), dtype="uint8", output_axis=0, input_axis=1
        )
        scale, zero = (
            StoredTensor(name=name, shape=(spec.num_groups(self.group), rows), dtype="float32",
                         output_axis=1, input_axis=0)
            for name in (SCALE, ZERO)
        )  # fmt: skip
        return values, scale, zero

    def memory_estimate(
        self, values: TensorHeader, scale: TensorHeader, *, packs: bool
    ) -> StorageEstimate:
        """Return the estimate of such a layer: zero points that are not integers take float32."""
        outputs, pairs = values.shape
        wide = replace(scale, dtype="float32")
        return integers_estimate(
            outputs, 2 * pairs, bits=4, scales=wide, has_zeros=True, packs=packs,
            group=self.group,
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix: value + 8 is stored, so that 8 - zero / scale is its zero point."""
        from dovetail_plugins.quantization._float_formats import nibbles
        from dovetail_plugins.quantization._grouped import grouped_weight

        values = nibbles(tensors[QDATA]) ^ 8
        scale, zero = (tensors[name].T.contiguous() for name in (SCALE, ZERO))
        return grouped_weight(values, scale, 8 - zero / scale, bits=4)


class TorchAo(StoredMethod):
    """Checkpoints that torchao's workflows store."""

    info = Info(
        summary="torchao checkpoints in safetensors: int8, float8, 1 to 8 bits in groups",
        source="https://github.com/pytorch/ao",
    )
    Options = rounding.IntegerOptions
    stored_as = ("torchao",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        kind = self.config.get("quant_type")
        kind = kind.get("default", kind) if isinstance(kind, dict) else kind
        if not isinstance(kind, dict):
            raise self.refuse(f"quant_type {kind!r} is not read; a config of torchao 0.18 is.")
        self.kind = str(kind.get("_type"))
        self.told: Mapping[str, Any] = kind.get("_data") or {}
        self.one_layout = self._layout()

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer of these tensors."""
        values, scale = (layer.tensors.get(name) for name in (QDATA, SCALE))
        if values is None or scale is None:
            return None
        return self.one_layout.memory_estimate(values, scale, packs=packs)

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the layout of every layer."""
        if not isinstance(self.one_layout, Bytes) or not self.one_layout.is_meant_float8:
            return self.one_layout
        is_rounded = rounds(self.options.activations, spec)
        return replace(self.one_layout, has_float8_activations=is_rounded)

    def _layout(self) -> Bytes | Nibbles:
        whole, group = self._granularity()
        if self.kind in INT8:
            is_dynamic = self.kind == DYNAMIC_INT8
            return Bytes(dtype="int8", group=group, is_whole=whole, has_token_scales=is_dynamic)
        if self.kind in FLOAT8:
            is_meant = self.kind == DYNAMIC_FLOAT8
            return Bytes(
                dtype="float8_e4m3fn", group=group, is_whole=whole, is_meant_float8=is_meant
            )
        if self.kind in INTX:
            return Bytes(dtype="int8", group=group, is_whole=whole, bits=self._bits())
        if self.kind == INT4:
            return Nibbles(group=int(self.told.get("group_size", 128)))
        known = ", ".join((*INT8, *FLOAT8, *INTX, INT4))
        raise self.refuse(f"quant_type {self.kind} is not read; {known} are.")

    def _granularity(self) -> tuple[bool, int]:
        """Return (whether there is one scale a matrix, inputs to a scale or 0)."""
        found: Any = self.told.get("granularity", self.told.get("weight_granularity"))
        found = found[-1] if isinstance(found, list) and found else found
        found = found if isinstance(found, dict) else {}
        name, data = found.get("_type"), found.get("_data") or {}
        default = self.kind == DYNAMIC_FLOAT8 and name is None
        return name == "PerTensor" or default, int(data.get("group_size", 0))

    def _bits(self) -> int:
        name = self.told.get("weight_dtype", {})
        name = str(name.get("_data") if isinstance(name, dict) else name).rpartition(".")[2]
        if name not in {f"int{bits}" for bits in range(1, 9)}:
            raise self.refuse(f"quant_type.weight_dtype {name} is not read; int1 to int8 are.")
        return int(name.removeprefix("int"))
