"""neuron_quant: the name that quantizing while loading has on Neuron devices. There is none here:
the arithmetic is that of the methods int8 or fp8 on the device at hand, as `dtype` says: `s8`, or
`f8e4m3fn`. Source: the values of NEURON_QUANT_DTYPE in the AWS Neuron documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.rounding import BFLOAT16
from dovetail_plugins.quantization.int8 import Int8, Int8Options

DTYPES = ("s8", "f8e4m3fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronOptions(Int8Options):
    """Options of neuron_quant."""

    dtype: str = field(default="s8", metadata={"choices": DTYPES, "help": "what weights become"})


class NeuronQuant(Int8):
    """int8 or fp8 by another name."""

    info = Info(summary="int8 or fp8 while loading, on a CPU or GPU (Neuron is not supported)")
    Options = NeuronOptions
    stored_as = ("neuron_quant",)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a full-precision layer: a byte a weight in both types."""
        estimate = super().memory_estimate(layer, packs=packs)
        is_int8 = self.options.dtype == "s8"
        return (
            estimate
            if estimate is None or is_int8
            else replace(estimate, format="float8", takes=BFLOAT16)
        )

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method of a layer."""
        from dovetail_kernels.gemm.weight import quantize_float8
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        if self.options.dtype == "s8":
            return super()._quantized(spec)
        return ConvertedLinear(quantize_float8, activations=self.activations)
