"""Cases of rotary."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance


def cases() -> list[Case]:
    """Return whole and partial turns, halves and interleaved, in three dtypes."""
    return [
        _case(tokens, turned, is_interleaved, dtype)
        for tokens, turned in ((1, 64), (33, 64), (33, 32))
        for is_interleaved in (False, True)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]


def _case(tokens: int, turned: int, is_interleaved: bool, dtype: torch.dtype) -> Case:
    heads, size = 8, 64
    return Case(
        name=f"T{tokens}_turned{turned}{'_interleaved' if is_interleaved else ''}",
        dtype=dtype,
        build=_builder((tokens, heads, size), turned, is_interleaved, dtype),
        moved_bytes=tokens * (2 * heads * size * dtype.itemsize + turned * 4),
        flops=3 * tokens * heads * turned,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    shape: tuple[int, int, int], turned: int, is_interleaved: bool, dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        positions = torch.arange(shape[0], device=device, dtype=torch.float32) + 5
        rates = 10000.0 ** -(torch.arange(0, turned, 2, device=device) / turned)
        angles = positions.unsqueeze(1) * rates
        return {
            "x": normal(shape, dtype, device, seed=1),
            "cos": angles.cos(),
            "sin": angles.sin(),
            "is_interleaved": is_interleaved,
        }

    return build
