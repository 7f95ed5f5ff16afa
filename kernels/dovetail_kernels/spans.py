"""Spans: names for stretches of work in the trace of torch's profiler, while one runs.

The profiler sees torch's operators by itself. Native kernels bypass torch, and a trace shows them
only by these names. Without a profiler, a kernel call is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dovetail_kernels.cpu import library as native

PREFIX = "dovetail::"
_NOTHING = nullcontext()


def kernel_span(name: str) -> AbstractContextManager[object]:
    """Return the span of a kernel's call."""
    from torch.profiler import record_function  # what names steps needs no torch before

    return record_function(PREFIX + name)


def span(name: str, more: Callable[[], str] | None = None) -> AbstractContextManager[object]:
    """Return a span of the trace that is taken now; without one it costs next to nothing. `more` is
    what its name says in brackets."""
    if native.call_span() is None:
        return _NOTHING
    return kernel_span(name if more is None else f"{name} ({more()})")


def show(is_shown: bool) -> None:
    """Start or stop naming stretches of work."""
    native.watch_calls(kernel_span if is_shown else None)
