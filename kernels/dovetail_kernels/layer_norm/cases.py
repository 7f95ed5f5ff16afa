"""Cases of layer_norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal, tolerance

ENDS: dict[str, dict[str, Any]] = {
    "weight_only": {"bias": False},
    "bare": {"weight": False, "bias": False},
    "bias_only": {"weight": False},
    "delta": {"delta": True},
    "apart": {"apart": 60},
    "far_mean": {"mean": 100.0},
    "offset": {"offset": 1.0},
}
PERF_TOKENS = (1, 8, 256)


def cases() -> list[Case]:
    """Return decode, prefill and odd sizes in three dtypes, and every fused end."""
    return norm_cases(_case, ENDS, 256, 70)


def small_cases() -> list[Case]:
    """Return the same with few rows, each interpreted separately."""
    return norm_cases(_case, ENDS, 3, 2)


def norm_cases(
    case: Callable[[int, int, torch.dtype, str], Case], ends: Iterable[str], prefill: int, many: int
) -> list[Case]:
    """Return the cases of a norm of rows: `case` makes one, `ends` are its fused ends."""
    plain = [
        case(tokens, size, dtype, "plain")
        for tokens, size in ((1, 1024), (7, 100), (prefill, 1024))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]
    odd = [case(3, size, torch.float32, "plain") for size in (1, 3, 17, 63, 77, 1023)]
    fused = [
        case(tokens, size, torch.float32, end)
        for end in ends
        for tokens, size in ((1, 1024), (many, 333))
    ]
    return plain + odd + fused


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [_case(tokens, 1024, torch.float32, "plain") for tokens in PERF_TOKENS]


def _case(tokens: int, size: int, dtype: torch.dtype, end: str) -> Case:
    options = ENDS.get(end, {})
    # Around a mean of 100 a float32 is exact to 4e-6.
    allowed = 2e-4 if "mean" in options else tolerance(dtype)
    return Case(
        name=f"{end}_T{tokens}_E{size}",
        dtype=dtype,
        build=_builder(tokens, size, dtype, options),
        mutates=("x",) if "delta" in options else (),
        moved_bytes=((2 + 2 * ("delta" in options)) * tokens + 2) * size * dtype.itemsize,
        flops=7 * tokens * size,
        rtol=allowed,
        atol=allowed,
    )


def _builder(
    tokens: int, size: int, dtype: torch.dtype, options: dict[str, Any]
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        wide = normal((tokens, size + options.get("apart", 0)), dtype, device, seed=1)
        arguments: Arguments = {"x": wide[:, :size] + options.get("mean", 0.0), "eps": 1e-5}
        if options.get("apart"):
            arguments["x"] = wide[:, :size]
        for seed, name in enumerate(("weight", "bias"), start=2):
            has_one = options.get(name, True)
            arguments[name] = normal((size,), dtype, device, seed=seed) if has_one else None
        if options.get("offset"):
            arguments["offset"] = options["offset"]
        if options.get("delta"):
            arguments["delta"] = normal((tokens, size), dtype, device, seed=4)
        return arguments

    return build
