"""Cases of nan_check: a NaN of either sign among many values or few, or infinities alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.nan_check.bits import INFINITY, bits_of, integer_of
from dovetail_kernels.op import Arguments, Case

SIGNS = {"nan": 1, "negative nan": -1, "numbers": 0}


def cases() -> list[Case]:
    """Return the cases."""
    types = ((1, torch.float32), (130, torch.float16), (200_003, torch.bfloat16))
    return [_case(size, dtype, word) for size, dtype in types for word in SIGNS]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(64 << 20, torch.bfloat16, "numbers")]


def _case(size: int, dtype: torch.dtype, word: str) -> Case:
    return Case(
        name=f"N{size} {str(dtype).removeprefix('torch.')} {word}",
        dtype=integer_of(dtype),
        build=_builder(size, dtype, word),
        moved_bytes=size * dtype.itemsize,
        flops=size,
        rtol=0,
        atol=0,
    )


def _builder(size: int, dtype: torch.dtype, word: str) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        generator = torch.Generator().manual_seed(size)
        values = torch.randn(size, generator=generator).to(dtype)
        values[size // 2] = float("-inf")
        bits, infinity = bits_of(values), INFINITY[dtype]
        if sign := SIGNS[word]:
            lowest = torch.iinfo(bits.dtype).min
            bits[size * 2 // 3] = infinity + 1 + (lowest if sign < 0 else 0)
        return {"bits": bits.to(device), "infinity": infinity}

    return build
