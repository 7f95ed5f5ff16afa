"""Timing the tiles that an op might have on the GPU that is here, for the table of tiles.

Knows no op: each names its keys, what to run for them and what might be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dovetail_kernels.gpu import interprets, missing_reason
from dovetail_kernels.gpu.table import tried

OPS = {
    "gemm": "dovetail_kernels.gemm.tiles",
    "paged_attention": "dovetail_kernels.paged_attention.tiles",
}
"""Ops with tiles to choose, and the module with their `choices(device)`."""
WORTH = 0.97
"""The best tile's time must be below this share of the usual one's to be stored."""
Timer = Callable[[Callable[[], Any]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A key of an op's table: the function to time, and the numbers that might be faster."""

    key: str
    run: Callable[[], Any]
    candidates: Sequence[dict[str, int]]


def refusal() -> str | None:
    """Return why nothing can be timed here, or None."""
    if interprets():
        return "kernels are interpreted (TRITON_INTERPRET=1): their times mean nothing"
    return missing_reason()


def choices_of(op: str, device: str) -> Sequence[Choice]:
    """Return the choices of an op's tiles."""
    found: Sequence[Choice] = import_module(OPS[op]).choices(device)
    return found


def fastest(op: str, choice: Choice, time: Timer) -> dict[str, int] | None:
    """Return the numbers that are faster than the usual tile; None if there are none. What does not
    fit the device is skipped."""
    usual = _timed(op, choice, {}, time)
    times = [_timed(op, choice, numbers, time) for numbers in choice.candidates]
    if not times or min(times) >= WORTH * usual:
        return None
    return choice.candidates[times.index(min(times))]


def timer() -> Timer:
    """Return the function that measures the median milliseconds of a call on the device, caches
    emptied before."""
    from triton.testing import do_bench

    return lambda call: float(do_bench(call, return_mode="median"))


def _timed(op: str, choice: Choice, numbers: dict[str, int], time: Timer) -> float:
    from triton.runtime.errors import OutOfResources

    with tried(op, choice.key, numbers):
        try:
            return time(choice.run)
        except OutOfResources:
            return float("inf")
