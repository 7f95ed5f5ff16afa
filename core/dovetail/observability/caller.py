"""CALLER: the HTTP request that the current task answers, for code that records requests.

A context variable, so that no function between the server and the engine has to pass it on. Knows
neither HTTP libraries nor what a trace is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from dovetail.interfaces.stats import Caller

MAX_HEADER_CHARS = 512
"""Length up to which W3C asks everyone to pass a tracestate on; longer ones are dropped."""

CALLER: ContextVar[Caller | None] = ContextVar("dovetail_caller", default=None)


def note_caller(path: str, headers: Iterable[tuple[bytes, bytes]], *, request_id: str = "") -> None:
    """Store the facts of the current HTTP request; `headers` are ASGI's, with lower-case names.
    Mutates: CALLER"""
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
