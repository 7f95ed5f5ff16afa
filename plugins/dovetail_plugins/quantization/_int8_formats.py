"""8-bit integers of checkpoints as weights that kernels multiply, and full-precision fallbacks.

Shape letters: N outputs, K inputs, G inputs that share a scale.
"""

from __future__ import annotations

from typing import Literal

import torch

from dovetail_kernels.gemm.weight import Weight, quantize_int8

Activations = Literal["float", "int8"]
STEP = 8
"""Groups of the kernels' formats are multiples of it."""
LARGEST_HALF = 65504.0


def int8_weight(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    *,
    activations: str = "float",
) -> Weight:
    """Return (values - zeros) * scales. Activations can be int8 with one scale an output alone.

    Shapes: values [N, K] int8, scales and zeros [N] or [N, K / G]
    """
    scales = scales.float()
    if activations == "int8" and zeros is None and scales.numel() == len(values):
        return Weight(format="int8", values=values, scales=scales.reshape(-1))
    scales = scales.reshape(len(values), -1)
    groups, inputs = scales.shape[1], values.shape[1]
    group = inputs // groups if groups > 1 else -(-inputs // STEP) * STEP
    points = None if zeros is None else zeros.float().reshape(scales.shape)
    if group % STEP:
        points = torch.zeros_like(scales) if points is None else points
        spread, points = (t.repeat_interleave(group, dim=1) for t in (scales, points))
        return full_weight((values.float() - points) * spread)
    return Weight(format="int8_float32", values=values, scales=scales, zeros=points, group=group)


def quantize_outputs(weight: torch.Tensor, *, activations: str = "float") -> Weight:
    """Return the nearest int8 matrix, a scale per output. Shapes: weight [N, K]"""
    made = quantize_int8(weight)
    assert made.scales is not None
    return int8_weight(made.values, made.scales, activations=activations)


def full_weight(wide: torch.Tensor) -> Weight:
    """Return a matrix that no kernel has a format for: in float16, which keeps three bits more, or
    in bfloat16 where its numbers are too large for that. Shapes: wide [N, K]"""
    if float(wide.abs().amax()) < LARGEST_HALF:
        return Weight(format="float16", values=wide.half())
    return Weight(format="bfloat16", values=wide.bfloat16())
