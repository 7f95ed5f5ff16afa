"""rms_norm in Triton: one program a row, the whole row in registers.

Floor: x is read and the result written once (with a delta, x is read and written and the delta
read): the time of those bytes at the device's bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    x, x_stride, delta, delta_stride, residual, weight, out, size, eps, offset,
    HAS_DELTA: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < size
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        own = tl.load(delta + row * delta_stride + column, mask=inside, other=0.0)
        rounded = (wide + own.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + row * x_stride + column, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    result = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    if HAS_WEIGHT:
        result = result * (tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset)
    if HAS_RESIDUAL:
        rounded = result.to(out.dtype.element_ty).to(tl.float32)
        result = rounded + tl.load(residual + row * size + column, mask=inside).to(tl.float32)
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), mask=inside)


def run(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    delta: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm of x (see the op). Rows of x and delta may be strided.

    Shapes: x, delta, residual [T, E], weight [E] -> [T, E]
    Mutates: x, when there is a delta
    """
    rows, size = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    width = triton.next_power_of_2(size)
    flags: dict[str, Any] = {
        "HAS_DELTA": delta is not None,
        "HAS_RESIDUAL": residual is not None,
        "HAS_WEIGHT": weight is not None,
    }
    _kernel[(rows,)](
        x, x.stride(0), delta, 0 if delta is None else delta.stride(0), residual, weight, out,
        size, eps, offset, **flags, WIDTH=width, num_warps=min(16, max(1, width // 256)),
    )  # fmt: skip
    return out
