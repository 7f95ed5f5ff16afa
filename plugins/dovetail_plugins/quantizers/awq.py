"""awq: scales important inputs up before rounding, and their producers down.

In every block it searches for a factor per input of the matrices that share their inputs: strong
inputs get larger weights, which round finer, and the norm or matrix before them is divided by the
factor, so the block's output stays the same. Then every group's range is clipped if that rounds the
rest better. Errors are those of the layers' outputs on the text, from sums of inputs. Layout:
`qweight` int32 [I, O / 8], `qzeros` int32 [I / G, O / 8], `scales` float16 [I / G, O].
Source: Lin et al., "AWQ: Activation-aware Weight Quantization", 2023
(https://arxiv.org/abs/2306.00978); the layout of https://github.com/casper-hansen/AutoAWQ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantizer import Block, Inputs, Quantized, Quantizer

if TYPE_CHECKING:
    import torch

BITS = 4
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The position of each output in a word of 8."""


class Awq(Quantizer):
    """4 bits with zero points, after scaling by input strength."""

    info = Info(
        summary="4 bits in groups by AWQ: important inputs are scaled up before rounding",
        source="https://arxiv.org/abs/2306.00978",
    )
    capabilities = frozenset({"calibrated", "grouped"})

    def why_whole(self, name: str, shape: tuple[int, int]) -> str:
        """Return why a matrix stays: groups and words must be full."""
        if shape[1] % self.task.group:
            return f"its inputs are not a multiple of {self.task.group}"
        return "its outputs are not a multiple of 8" if shape[0] % 8 else ""

    def smooth(self, block: Block) -> None:
        """Scale the block's inputs. Mutates: block"""
        from dovetail_plugins.quantizers._awq import scale_block

        model_type = str(self.task.model.hf_config.get("model_type", ""))
        adds_one = model_type.startswith("gemma") or model_type == "nemotron"
        scale_block(block, self.task.group, adds_one=adds_one)

    def quantize(self, name: str, weight: torch.Tensor, inputs: Inputs | None) -> Quantized:
        """Return the matrix rounded within ranges that are cut. Without inputs (a layer that the
        text never met) no range is cut. Shapes: weight [O, I]"""
        from dovetail_plugins.quantizers import _rounding as rounding
        from dovetail_plugins.quantizers._awq import best_ranges, full_ranges

        group = self.task.group
        if inputs is None:
            steps, zeros = full_ranges(weight, group)
        else:
            steps, zeros = best_ranges(weight, inputs.gram, group)
        values = rounding.levels(weight, steps, bits=BITS, zeros=zeros)
        tensors = {
            "qweight": rounding.pack(values.T, BITS, axis=1, order=PLACES),
            "qzeros": rounding.pack(zeros.T, BITS, axis=1, order=PLACES),
            "scales": steps.T.contiguous(),
        }
        rounded = rounding.meant(values, steps, bits=BITS, zeros=zeros)
        return Quantized(tensors=tensors, meant=rounded)

    def settings(self, whole: Sequence[str]) -> Mapping[str, Any]:
        """Return config.json's quantization_config."""
        return {
            "quant_method": "awq",
            "bits": BITS,
            "group_size": self.task.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(whole),
        }
