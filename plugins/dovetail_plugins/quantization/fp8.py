"""fp8: float8 e4m3 weights, from the checkpoint or made while a full-precision one loads.

Stored: per layer `weight` e4m3 [O, I], and `weight_scale` [], or with `weight_block_size` in the
config `weight_scale_inv` [O / 128, I / 128]; a weight is value * scale in both. While loading: a
scale per output, the largest magnitude over 448; the head is not quantized. Stored as float8 in
memory. On a GPU that multiplies two 8-bit floats activations become e4m3 too, elsewhere they stay
float. Their scales are always a row's own, as exact as the `input_scale` of `activation_scheme`
"static" or more so; with blocks DeepSeek's own kernels have a scale for every 128 inputs of a row.
With `expert_dtype` "fp4" the stored experts are 4-bit floats (DeepSeek-V4).
Source: AutoFP8's and DeepSeek-V3's checkpoints (https://github.com/neuralmagic/AutoFP8,
https://huggingface.co/deepseek-ai/DeepSeek-V3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout
from dovetail_plugins.layers.stored.rounding import FLOAT8
from dovetail_plugins.quantization._either import EitherMethod, SkipOptions
from dovetail_plugins.quantization._estimates import float8_estimate, made_estimate
from dovetail_plugins.quantization._float8_layouts import BlockScale, PackedFloats, WholeScale
from dovetail_plugins.quantization._float8_rounding import CHOICES, rounds
from dovetail_plugins.quantization.mxfp4 import EXPERTS

SCALES_NOT_USED = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".q_scale")
"""Unused scales: of activations, which have one per row here, and of a cache in float8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Options(SkipOptions):
    """Options of fp8."""

    activations: str = field(default=FLOAT8, metadata=CHOICES)


class Fp8(EitherMethod):
    """float8 e4m3 weights, float8 activations if a GPU supports them."""

    info = Info(
        summary="float8 (e4m3) weights, stored or made while loading; activations too on new GPUs",
        source="https://arxiv.org/abs/2209.05433",
    )
    Options = Fp8Options
    stored_as = ("fp8",)
    ignored = SCALES_NOT_USED

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        kind = self.config.get("fmt", "e4m3")
        if kind not in ("e4m3", "float8_e4m3fn"):
            raise self.refuse(f'fmt "{kind}" is not read; "e4m3" is.')
        self.block = self._block()
        self.expert_type = self.config.get("expert_dtype") or model.hf_config.get("expert_dtype")

    def _block(self) -> tuple[int, int] | None:
        sizes = self.config.get("weight_block_size")
        if not sizes:
            return None
        if isinstance(sizes, list) and len(sizes) == 2:
            rows, columns = sizes
            if all(isinstance(n, int) and n > 0 for n in sizes) and columns % 8 == 0:
                return rows, columns
        raise self.refuse(
            f"weight_block_size {sizes} is not a pair of sizes, the second a multiple of 8."
        )

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the layout of every layer that is stored in float8."""
        is_rounded = rounds(self.options.activations, spec)
        if self.expert_type == "fp4" and EXPERTS in spec.name:
            return PackedFloats(name="weight_scale_inv")
        if self.block is None:
            return WholeScale(has_float8_activations=is_rounded)
        return BlockScale(
            name="weight_scale_inv",
            block=self.block,
            where=self.where,
            has_float8_activations=is_rounded,
        )

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer in float8, or of a full-precision one while it loads."""
        if self.is_stored:
            block = 0 if self.block is None else self.block[1]
            return float8_estimate(layer, block=block, takes=FLOAT8)
        if self.is_skipped(layer.name):
            return None
        return made_estimate(
            layer, bits=8, scale_bytes=4, packs=packs, format="float8", takes=FLOAT8
        )

    def quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method that makes a weight float8."""
        from dovetail_kernels.gemm.weight import quantize_float8
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        is_rounded = rounds(self.options.activations, spec)
        return ConvertedLinear(
            partial(quantize_float8, has_float8_activations=is_rounded),
            activations=self.activations,
        )
