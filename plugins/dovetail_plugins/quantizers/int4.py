"""int4: weights rounded to nearest in 16 levels with a scale per group; compressed-tensors.

Layout pack-quantized (W4A16): `weight_packed` int32 [O, I / 8], values plus 8, lowest bits first,
`weight_scale` [O, I / G] in the checkpoint's own type, `weight_shape` [2].
Source: https://github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Inputs, Quantized, Quantizer
from dovetail_plugins.quantizers._compressed import settings_of, words_unfit

if TYPE_CHECKING:
    import torch

BITS = 4


class Int4(Quantizer):
    """4 bits, one scale per group of inputs, no calibration."""

    info = Info(
        summary="4 bits in groups of inputs, rounded to nearest, in the compressed-tensors format",
        source="https://github.com/vllm-project/compressed-tensors",
    )
    capabilities = frozenset({"grouped"})

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: groups and words must be full."""
        if shape[1] % self.task.group:
            return f"its inputs are not a multiple of {self.task.group}"
        return words_unfit(shape, BITS)

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix rounded to nearest. Shapes: weight [O, I]"""
        import torch

        from dovetail_plugins.quantizers import _rounding as rounding

        dtype = torch.float16 if self.task.model.dtype == "float16" else torch.bfloat16
        if self.task.model.weight_dtype == "float32":
            dtype = torch.float32
        steps = rounding.even_steps(weight, self.task.group, bits=BITS, dtype=dtype)
        values = rounding.levels(weight, steps, bits=BITS)
        tensors = {
            "weight_packed": rounding.pack(values, BITS, axis=1),
            "weight_scale": steps,
            "weight_shape": torch.tensor(weight.shape),
        }
        return Quantized(tensors=tensors, meant=rounding.meant(values, steps, bits=BITS))

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config."""
        return settings_of(
            format="pack-quantized",
            bits=BITS,
            group=self.task.group,
            has_int8_inputs=False,
            whole=whole,
        )
