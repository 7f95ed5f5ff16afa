"""int8: weights rounded to nearest in 255 levels with a scale per output; compressed-tensors.

With activations "int8" the layout is int-quantized (W8A8): `weight` int8 [O, I], `weight_scale`
[O, 1], and readers round activations to 8 bits per token. With "float" it is pack-quantized
(W8A16), readers' layout for weight-only quantization: `weight_packed` int32 [O, I / 4], plus 128.
Source: https://github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Inputs, Quantized, Quantizer
from dovetail_plugins.quantizers._compressed import settings_of, words_unfit

if TYPE_CHECKING:
    import torch

BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Options:
    """Options that engines follow which load the checkpoint."""

    activations: str = field(
        default="int8",
        metadata={
            "choices": ("int8", "float"),
            "help": "int8: readers round activations to 8 bits per token; float: not",
        },
    )


class Int8(Quantizer):
    """8 bits, one scale per output."""

    info = Info(
        summary="8 bits, rounded to nearest, one scale per output, in the compressed-tensors "
        "format",
        source="https://github.com/vllm-project/compressed-tensors",
    )
    Options = Int8Options

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: packed rows must fill words."""
        return "" if self._is_w8a8 else words_unfit(shape, BITS)

    @property
    def _is_w8a8(self) -> bool:
        return bool(self.options.activations == "int8")

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix rounded to nearest. Shapes: weight [O, I]"""
        import torch

        from dovetail_plugins.quantizers import _rounding as rounding

        steps = rounding.even_steps(weight, weight.shape[1], bits=BITS, dtype=torch.float32)
        values = rounding.levels(weight, steps, bits=BITS)
        rounded = rounding.meant(values, steps, bits=BITS)
        if self._is_w8a8:
            signed = (values.to(torch.int16) - 128).to(torch.int8)
            return Quantized(tensors={"weight": signed, "weight_scale": steps}, meant=rounded)
        tensors = {
            "weight_packed": rounding.pack(values, BITS, axis=1),
            "weight_scale": steps,
            "weight_shape": torch.tensor(weight.shape),
        }
        return Quantized(tensors=tensors, meant=rounded)

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config."""
        return settings_of(
            format="int-quantized" if self._is_w8a8 else "pack-quantized",
            bits=BITS,
            group=None,
            has_int8_inputs=self._is_w8a8,
            whole=whole,
        )
