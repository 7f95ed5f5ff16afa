"""Cases of rms_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail_kernels.layer_norm.cases import norm_cases
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

ENDS: dict[str, dict[str, Any]] = {
    "delta": {"delta": True},
    "residual": {"residual": True},
    "apart": {"apart": 60},
    "apart_delta": {"apart": 60, "delta": True},
    "offset": {"offset": 1.0},
    "bare": {"bare": True},
    "bare_residual": {"bare": True, "residual": True},
}
PERF_TOKENS = (1, 8, 256)


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes in three dtypes, and every fused end."""
    return norm_cases(_case, ENDS, 256, 70)


def small_cases() -> list[Case]:
    """Return the same with few rows, each interpreted separately."""
    return norm_cases(_case, ENDS, 3, 2)


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case(tokens, 1024, torch.float32, end)
        for end in ("plain", "delta", "offset")
        for tokens in PERF_TOKENS
    ]


def _case(tokens: int, size: int, dtype: torch.dtype, end: str) -> Case:
    options = ENDS.get(end, {})
    streams = 2 + 2 * ("delta" in options) + ("residual" in options)
    return Case(
        name=f"{end}_T{tokens}_E{size}",
        dtype=dtype,
        build=_builder(tokens, size, dtype, options),
        mutates=("x",) if "delta" in options else (),
        moved_bytes=(streams * tokens + 1) * size * dtype.itemsize,
        flops=4 * tokens * size,
        rtol=tolerance(dtype),
        atol=tolerance(dtype),
    )


def _builder(
    tokens: int, size: int, dtype: torch.dtype, options: dict[str, Any]
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        wide = normal((tokens, size + options.get("apart", 0)), dtype, device, seed=1)
        arguments: Arguments = {
            "x": wide[:, :size],
            "weight": None if options.get("bare") else normal((size,), dtype, device, seed=2),
            "eps": 1e-6,
            "offset": options.get("offset", 0.0),
        }
        for seed, name in enumerate(("delta", "residual"), start=3):
            if options.get(name):
                arguments[name] = normal((tokens, size), dtype, device, seed=seed)
        return arguments

    return build
