"""gated_norm in Triton: one program a group of a row, the whole group in registers.

Floor: x and the gate are read and the result written once: the time of those bytes at the device's
bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    x, x_stride, gate, gate_stride, weight, weight_stride, out, out_stride, size, eps,
    GATE_FIRST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    inside = column < size
    at = group * size + column
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    opened = own / (1.0 + tl.exp(-own))
    if GATE_FIRST:
        values = values * opened
    result = values * tl.rsqrt(tl.sum(values * values, axis=0) / size + eps)
    scale = tl.load(weight + group * weight_stride + column, mask=inside, other=0.0)
    result = result * scale.to(tl.float32)
    if not GATE_FIRST:
        result = result * opened
    tl.store(out + row * out_stride + at, result.to(out.dtype.element_ty), mask=inside)


def run(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    gate_first: bool,
) -> torch.Tensor:
    """Return the gated norm (see the op). Rows of x and of the gate may be strided.

    Shapes: x, gate [T, D], weight [D] or [group_size] -> [T, D]
    """
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(group_size)
    if rows:
        _kernel[(rows, size // group_size)](
            x, x.stride(0), gate, gate.stride(0), weight,
            group_size if len(weight) == size else 0, out, size, group_size, eps,
            GATE_FIRST=gate_first, WIDTH=width, num_warps=min(16, max(1, width // 256)),
        )  # fmt: skip
    return out
