"""Cases of product."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

PERF_TOKENS = (1, 8, 256)
GATED, SCALED = "gated", "scaled"
"""What x is multiplied by: a gate, a factor of each channel."""


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes, gated, scaled and both, in three dtypes."""
    usual = [
        _case(tokens, size, activation, by, dtype)
        for tokens, size in ((1, 3072), (33, 100))
        for activation, by in (
            ("none", (GATED,)),
            ("silu", (GATED, SCALED)),
            ("none", (SCALED,)),
        )
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    others = [
        _case(tokens, size, activation, (GATED, SCALED), torch.float32)
        for tokens, size in ((1, 5000), (3, 17))
        for activation in ACTIVATIONS
    ]
    return usual + others


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case(tokens, 3072, activation, by, torch.float32)
        for activation, by in (("silu", (GATED, SCALED)), ("none", (SCALED,)))
        for tokens in PERF_TOKENS
    ]


def _case(tokens: int, size: int, activation: str, by: tuple[str, ...], dtype: torch.dtype) -> Case:
    moved = 3 if GATED in by else 2
    return Case(
        name=f"T{tokens}_C{size}_{activation}_{'_'.join(by)}",
        dtype=dtype,
        build=_builder(tokens, size, activation, by, dtype),
        moved_bytes=moved * tokens * size * dtype.itemsize,
        flops=6 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int, size: int, activation: str, by: tuple[str, ...], dtype: torch.dtype
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        # Rows of both are strided, as parts of a wider matrix are.
        wide = normal((tokens, 2 * size + 16), dtype, device, seed=1)
        arguments: Arguments = {"x": wide[:, 16 : 16 + size], "activation": activation}
        if GATED in by:
            arguments["gate"] = wide[:, 16 + size :]
        if SCALED in by:
            arguments["factors"] = normal((size,), torch.float32, device, seed=2)
        return arguments

    return build
