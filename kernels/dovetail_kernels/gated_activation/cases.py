"""Cases of gated_activation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

PERF_TOKENS = (1, 8, 256)


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes for each activation, the usual ones in three dtypes."""
    usual = [
        _case(tokens, size, activation, dtype)
        for tokens, size in ((1, 3072), (33, 100))
        for activation in ("silu", "gelu", "gelu_tanh")
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    others = [
        _case(tokens, size, activation, torch.float32)
        for tokens, size in ((1, 5000), (3, 17))
        for activation in ACTIVATIONS
    ]
    return usual + others


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case(tokens, 3072, activation, torch.float32)
        for activation in ("silu", "gelu", "gelu_tanh")
        for tokens in PERF_TOKENS
    ]


def _case(tokens: int, size: int, activation: str, dtype: torch.dtype) -> Case:
    return Case(
        name=f"T{tokens}_F{size}_{activation}",
        dtype=dtype,
        build=_builder(tokens, size, activation, dtype),
        moved_bytes=3 * tokens * size * dtype.itemsize,
        flops=6 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int, size: int, activation: str, dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        return {
            "x": normal((tokens, 2 * size), dtype, device, seed=1),
            "activation": activation,
        }

    return build
