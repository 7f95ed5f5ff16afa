"""softplus in Triton, as exact for small results as for large ones. Knows no op; needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """Return ln(1 + e^x) of float32 numbers.

    It is max(x, 0) + ln(1 + u) with u = e^-|x|; that logarithm is taken of 1 + u as it was rounded,
    and corrected by how much was. Source: Kahan's way to log1p
    """
    u = tl.exp(-tl.abs(x))
    rounded = 1.0 + u
    corrected = tl.log(rounded) * (u / tl.maximum(rounded - 1.0, 1e-30))
    return tl.maximum(x, 0.0) + tl.where(rounded == 1.0, u, corrected)
