"""int8: any full-precision checkpoint becomes 8-bit while it loads, activations 8-bit as they come.

Weights get one scale per output, activations one per group of inputs: outliers take the exactness
of their group alone. Source: Dettmers et al., LLM.int8(), 2022, without the outlier part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.headers import Kept, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail.layers.rounding import INT8, IntegerOptions
from dovetail_plugins.quantization._kept import made_kept
from dovetail_plugins.quantization._while_loading import WhileLoading


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Options(IntegerOptions):
    """Options of int8."""

    skip: tuple[str, ...] = field(
        default=(),
        metadata={"help": "parts of layer names that stay in full precision, e.g. lm_head"},
    )


class Int8(WhileLoading):
    """8-bit weights per output, 8-bit or float activations."""

    info = Info(
        summary="8-bit weights and activations, quantized while loading",
        source="https://arxiv.org/abs/2208.07339",
    )
    Options = Int8Options

    def kept(self, layer: StoredLayer, *, packs: bool) -> Kept | None:
        """Return what a full-precision layer becomes."""
        if self.is_skipped(layer.name):
            return None
        return made_kept(layer, bits=8, scale_bytes=4, packs=packs, format="int8", takes=INT8)

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the 8-bit method."""
        from dovetail.layers.matrix_linear import ConvertedLinear
        from dovetail_kernels.gemm.weight import quantize_int8

        return ConvertedLinear(quantize_int8, activations=self.activations)

    def _skipped(self) -> tuple[str, ...]:
        options: Any = self.options
        return tuple(options.skip)
