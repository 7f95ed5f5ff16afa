"""8-bit integers of checkpoints as weights that kernels multiply, and full-precision fallbacks.

Shape letters: N outputs, K inputs, G inputs that share a scale.
"""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.weight import Weight

STEP, OUTPUT_STEP = 8, 16
"""Groups of the kernels' formats are multiples of it; one group of all inputs, of the second,
which every product takes."""
LARGEST_HALF = 65504.0


def int8_weight(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
) -> Weight:
    """Return (values - zeros) * scales.

    Shapes: values [N, K] int8, scales and zeros [N] or [N, K / G]
    """
    scales = scales.float()
    if zeros is None and scales.numel() == len(values):
        return Weight(format="int8", values=values, scales=scales.reshape(-1))
    scales = scales.reshape(len(values), -1)
    groups, inputs = scales.shape[1], values.shape[1]
    group = inputs // groups if groups > 1 else -(-inputs // OUTPUT_STEP) * OUTPUT_STEP
    points = None if zeros is None else zeros.float().reshape(scales.shape)
    if group % STEP:
        points = torch.zeros_like(scales) if points is None else points
        spread, points = (t.repeat_interleave(group, dim=1) for t in (scales, points))
        return full_weight((values.float() - points) * spread)
    return Weight(format="int8_float32", values=values, scales=scales, zeros=points, group=group)


def full_weight(wide: torch.Tensor) -> Weight:
    """Return a matrix that no kernel has a format for: in float16, which has three more bits of
    precision, or in bfloat16 if its numbers are too large for that. Shapes: wide [N, K]"""
    if float(wide.abs().amax()) < LARGEST_HALF:
        return Weight(format="float16", values=wide.half())
    return Weight(format="bfloat16", values=wide.bfloat16())
