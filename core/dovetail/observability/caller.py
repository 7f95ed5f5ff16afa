"""CALLER: the HTTP request that the current task answers, for code that records requests.

A context variable, so that no function between the server and the engine hands it on. Knows
neither HTTP libraries nor what a trace is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from dovetail.interfaces.stats import Caller

MAX_HEADER_CHARS = 512
"""The longest tracestate that the W3C format asks everyone to pass on; a longer one is left out."""

CALLER: ContextVar[Caller | None] = ContextVar("dovetail_caller", default=None)


def note_caller(path: str, headers: Iterable[tuple[bytes, bytes]], *, request_id: str = "") -> None:
    """Remember who asked; `headers` are ASGI's, names in lower case. Mutates: CALLER"""
    facts = {
        name: value.decode("latin-1")
        for name, value in headers
        if name in (b"traceparent", b"tracestate") and len(value) <= MAX_HEADER_CHARS
    }
    CALLER.set(
        Caller(
            request_id=request_id,
            path=path,
            traceparent=facts.get(b"traceparent", ""),
            tracestate=facts.get(b"tracestate", ""),
        )
    )
