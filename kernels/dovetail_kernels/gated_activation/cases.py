"""Cases of gated_activation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance


def cases() -> list[Case]:
    """Return decode and prefill sizes for each activation in three dtypes."""
    return [
        _case(tokens, size, activation, dtype)
        for tokens, size in ((1, 3072), (33, 100))
        for activation in ("silu", "gelu", "gelu_tanh")
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
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
