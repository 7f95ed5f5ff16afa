"""CALLER: the HTTP request that the current task answers, for code that records requests.

A context variable, so that no function between the server and the engine has to pass it on. Knows
neither HTTP libraries nor what a trace is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from msgspec.structs import replace

from dovetail.interfaces.gate import Visit
from dovetail.interfaces.stats import Caller

MAX_HEADER_CHARS = 512
"""Length up to which W3C asks everyone to pass a tracestate on; longer ones are dropped."""
MAX_USER_CHARS = 128

CALLER: ContextVar[Caller | None] = ContextVar("dovetail_caller", default=None)
VISIT: ContextVar[Visit | None] = ContextVar("dovetail_visit", default=None)
"""What the gate knows of that request; None if it was not asked."""


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


def enter(owner: str, weight: float, visit: Visit | None) -> None:
    """Store whom the current HTTP request is from. Mutates: CALLER, VISIT"""
    CALLER.set(replace(CALLER.get() or Caller(), owner=owner, weight=weight))
    VISIT.set(visit)


def enter_user(user: str) -> None:
    """Divide the current request's owner: it is from one of the owner's users. Mutates: CALLER"""
    caller = CALLER.get() or Caller()
    CALLER.set(replace(caller, owner=f"{caller.owner}/{user[:MAX_USER_CHARS]}"))
