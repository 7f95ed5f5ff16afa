"""Cases of output_gate: whole and odd rows, contiguous and strided."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes in three dtypes."""
    return [
        _case(tokens, size, apart, dtype)
        for tokens, size, apart in ((1, 1024, 0), (7, 333, 13), (70, 64, 5))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(tokens, 4096, 0, torch.float32) for tokens in (1, 8, 256)]


def _case(tokens: int, size: int, apart: int, dtype: torch.dtype) -> Case:
    return Case(
        name=f"T{tokens}_D{size}_{str(dtype).removeprefix('torch.')}",
        dtype=dtype,
        build=_builder(tokens, size, apart, dtype),
        moved_bytes=3 * tokens * size * dtype.itemsize,
        flops=20 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int, size: int, apart: int, dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        x, gate = (normal((tokens, size + apart), dtype, device, seed=seed) for seed in (1, 2))
        return {"x": x[:, :size], "gate": gate[:, :size]}

    return build
