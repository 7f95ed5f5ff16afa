"""compressed-tensors checkpoints: groups of layers, each with its own scheme and format.

`config_groups` give a scheme to layers by name, by expression ("re:") or by class ("Linear");
`ignore` leaves layers out. Formats: pack-quantized (1 to 8 bits in int32), int-quantized (int8),
float-quantized (e4m3, per matrix, output, block or group), naive-quantized (either),
nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized, marlin-24 (2:4 sparse, in tiles) and,
by `sparsity_config`, sparse-24-bitmask (2:4 sparse, with or without a quantized format). The
tensors of each are in `_compressed_layouts.py`. Layers whose scheme has int8 activations get them
with a scale per token (in groups, like other integers). Layers whose scheme has 8-bit float
activations get them on a GPU that multiplies such pairs (not for MX formats). Stored activation
scales (`input_scale`) are ignored, because scales are computed from the activations. Scales of the
KV cache are not used: the cache is stored as --kv-cache-dtype says. Sparse weights are stored
dense, except for those of 4 bits in Marlin's tiles.
Source: https://github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod, listed
from dovetail_plugins.layers.stored.layer_names import is_listed, one_for_parts
from dovetail_plugins.layers.stored.names import bare
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT8, INT8, TOKEN, IntegerOptions
from dovetail_plugins.quantization._estimates import (
    codes_estimate,
    dense_tensors,
    float8_estimate,
    integers_estimate,
    plain_estimate,
    tiles_estimate,
)

CLASS = "Linear"
EXPRESSION = "re:"
DENSE = "dense"
BITMASK = "sparse-24-bitmask"
MARLIN_24 = "marlin-24"
FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    MARLIN_24,
)
MIXED = "mixed-precision"
STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
UNUSED = (
    ".weight_shape",
    ".shape",
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".k_zero_point",
    ".v_zero_point",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the weights of some layers are stored. `group` 0: not in groups.

    `has_token_scales`: the scheme makes activations int8, not in groups; `has_float8_inputs`: 8-bit
    floats.
    """

    format: str
    bits: int
    is_float: bool
    strategy: str
    group: int
    is_symmetric: bool
    block: tuple[int, int]
    has_token_scales: bool
    has_float8_inputs: bool


class CompressedTensors(StoredMethod):
    """Each layer in the layout of its scheme."""

    info = Info(
        summary="compressed-tensors checkpoints: 4 and 8 bits, FP8, FP4, 2:4 sparse",
        source="https://github.com/vllm-project/compressed-tensors",
    )
    Options = IntegerOptions
    stored_as = ("compressed-tensors",)
    ignored = UNUSED

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.has_head = True
        self.float_dtype = model.weight_dtype or model.dtype
        if (self.config.get("transform_config") or {}).get("config_groups"):
            raise self.refuse("transform_config is not read: rotations of activations.")
        groups = self.config.get("config_groups") or {}
        self.schemes = [
            (tuple(map(str, group.get("targets") or ())), self._scheme(group))
            for group in groups.values()
        ]
        self.sparsity: Mapping[str, Any] = self.config.get("sparsity_config") or {}
        self._check_sparsity()

    def layout(self, spec: LinearSpec) -> StorageLayout | None:
        """Return how a layer is stored."""
        scheme = one_for_parts(spec.name, self._look_up, None, where=self.where)
        from dovetail_plugins.quantization import _compressed_layouts as layouts

        stored = layouts.layout_of(scheme, spec, self.options.activations, self.where)
        if one_for_parts(spec.name, self._is_sparse, False, where=self.where):
            return layouts.BitmaskLayout(inner=stored)
        return stored

    def _look_up(self, name: str) -> Scheme | None:
        """Return the scheme of one checkpoint layer: names and expressions before classes."""
        for matches in (self._is_named, _is_of_class):
            for targets, scheme in self.schemes:
                if any(matches(name, target) for target in targets):
                    return scheme
        return None

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer of integers, float8 or 4-bit floats."""
        scheme = self._look_up(layer.name)
        tensors = dense_tensors(layer.tensors)
        layer = StoredLayer(name=layer.name, tensors=tensors)
        if scheme is None and "bitmask" in tensors:
            return plain_estimate(tensors["weight"].num_values, self.float_dtype)
        if scheme is not None and scheme.format == MARLIN_24 and "scale_packed" in tensors:
            return tiles_estimate(
                tensors["weight_packed"],
                tensors["scale_packed"],
                is_sparse=True,
                packs=packs,
            )
        if scheme is None or "weight_scale" not in tensors:
            return None
        if scheme.is_float and scheme.bits == 8:
            is_meant = scheme.has_float8_inputs and not scheme.format.startswith("mx")
            block = scheme.block[1] or scheme.group
            return float8_estimate(layer, block=block, takes=FLOAT8 if is_meant else BFLOAT16)
        weight = tensors.get("weight", tensors.get("weight_packed"))
        if weight is None or len(weight.shape) != 2:
            return None
        outputs, words = weight.shape
        if scheme.is_float:
            return codes_estimate(
                outputs,
                2 * words,
                group=scheme.group,
                scale_bytes=2 if scheme.format.startswith("mx") else 1,
                has_outer="weight_global_scale" in tensors,
                packs=packs,
            )
        return integers_estimate(
            outputs,
            words * 32 // scheme.bits if weight.dtype == "int32" else words,
            bits=scheme.bits,
            scales=tensors["weight_scale"],
            has_zeros=not scheme.is_symmetric,
            packs=packs,
            group=scheme.group,
            takes=TOKEN if scheme.has_token_scales else INT8,
        )

    def _is_sparse(self, name: str) -> bool:
        """Return whether a checkpoint layer holds a bitmask and the values it keeps."""
        if self.sparsity.get("format") != BITMASK:
            return False
        if is_listed(name, listed(self.sparsity.get("ignore") or ()), self.names.matched):
            return False
        targets = self.sparsity.get("targets") or [CLASS]
        return any(self._is_named(name, target) or _is_of_class(name, target) for target in targets)

    def _is_named(self, name: str, target: str) -> bool:
        if target.startswith(EXPRESSION):
            pattern = target.removeprefix(EXPRESSION)
            names = self.names.matched(name, pattern)
            return any(re.match(pattern, one) is not None for one in names)
        return bare(name) == bare(target)

    def _check_sparsity(self) -> None:
        format = self.sparsity.get("format", DENSE)
        if format not in (DENSE, BITMASK):
            raise self.refuse(f'the sparse format "{format}" is not read; {BITMASK} is.')

    def _scheme(self, group: Mapping[str, Any]) -> Scheme | None:
        """Return the scheme of a group, None if its weights are in full precision.

        Raises: ConfigError
        """
        weights = group.get("weights")
        format = group.get("format") or self.config.get("format") or DENSE
        if not weights or format == DENSE:
            return None
        if format == MIXED or format not in FORMATS:
            raise self.refuse(f'the format "{format}" is not read; {", ".join(FORMATS)} are.')
        strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
        if strategy not in STRATEGIES:
            raise self.refuse(f'strategy "{strategy}" is not read; {", ".join(STRATEGIES)} are.')
        inputs = group.get("input_activations") or {}
        is_8_bit, is_int = inputs.get("num_bits") == 8, inputs.get("type", "int") == "int"
        rows, columns = weights.get("block_structure") or (0, 0)
        return Scheme(
            format=str(format),
            bits=int(weights.get("num_bits", 8)),
            is_float=weights.get("type", "int") == "float",
            strategy=str(strategy),
            group=int(weights.get("group_size") or 0) if "group" in strategy else 0,
            is_symmetric=bool(weights.get("symmetric", True)),
            block=(int(rows), int(columns)),
            has_token_scales=is_8_bit and is_int and inputs.get("strategy") != "group",
            has_float8_inputs=is_8_bit and inputs.get("type") == "float",
        )


def _is_of_class(name: str, target: str) -> bool:
    """Return whether a class includes the layer: all layers here are linear ones."""
    return target == CLASS
