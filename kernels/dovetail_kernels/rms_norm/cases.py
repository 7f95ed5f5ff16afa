"""Cases of rms_norm."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes in three dtypes."""
    return [
        _case(tokens, size, dtype)
        for tokens, size in ((1, 1024), (7, 100), (256, 1024))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]


def _case(tokens: int, size: int, dtype: torch.dtype) -> Case:
    return Case(
        name=f"T{tokens}_E{size}",
        dtype=dtype,
        build=_builder(tokens, size, dtype),
        moved_bytes=(2 * tokens + 1) * size * dtype.itemsize,
        flops=4 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(tokens: int, size: int, dtype: torch.dtype) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        return {
            "x": normal((tokens, size), dtype, device, seed=1),
            "weight": normal((size,), dtype, device, seed=2),
            "eps": 1e-6,
        }

    return build
