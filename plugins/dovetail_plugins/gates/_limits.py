"""Meters: what an owner uses now, against limits.

Each API process counts its own requests, so each has an equal part of a limit, rounded up.
"""

from __future__ import annotations

import math
import time

from dovetail.errors import Overloaded, RequestError
from dovetail_plugins.gates._keys_file import Limits

MINUTE_S = 60
DAY_S = 86400
RETRY_S = 1.0
"""When to try again where only the end of another request makes room."""


class LimitReached(Overloaded):
    """An owner's limit is reached: status 429."""

    kind = "rate_limit_error"

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        super().__init__(what, retry_after_s=retry_after_s, status=429)
        self.code = "rate_limit_exceeded"


class Window:
    """The tokens used in the current period; periods are whole multiples since 1970."""

    __slots__ = ("_number", "_used", "period_s")

    def __init__(self, period_s: int) -> None:
        self.period_s = period_s
        self._number = 0
        self._used = 0

    def add(self, num_tokens: int) -> None:
        """Count tokens. Mutates: self"""
        self._used = self.used() + num_tokens

    def used(self) -> int:
        """Return the tokens of this period. Mutates: self, if a period has begun"""
        number = int(time.time() // self.period_s)
        if number != self._number:
            self._number, self._used = number, 0
        return self._used

    def reset_s(self) -> float:
        """Return how many seconds are left of this period."""
        return self.period_s - time.time() % self.period_s


class Meter:
    """What one owner uses, altogether or of one model. `limits` may change with the keys file."""

    __slots__ = ("_processes", "_what", "day", "limits", "minute", "num_open", "num_queued")

    def __init__(self, what: str, limits: Limits, num_processes: int) -> None:
        self._what = what
        self._processes = num_processes
        self.limits = limits
        self.num_open = 0
        self.num_queued = 0
        self.minute = Window(MINUTE_S)
        self.day = Window(DAY_S)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing would be lost with this meter."""
        return not (self.num_open or self.num_queued or self.minute.used() or self.day.used())

    def share(self, limit: int) -> int:
        """Return this process's part of a limit."""
        return math.ceil(limit / self._processes)

    def check_open(self) -> None:
        """Raise LimitReached if no further request may be answered now."""
        limit = self.limits.requests
        if limit is not None and self.num_open >= self.share(limit):
            raise self._reached(f"{limit} requests at a time", RETRY_S)

    def check_prompt(self, num_tokens: int) -> None:
        """Raise LimitReached if a prompt may not be sent to an engine now, RequestError if it is
        too long at any time."""
        limits = self.limits
        if limits.prompt_tokens is not None and num_tokens > limits.prompt_tokens:
            raise self._too_long(num_tokens, f"{limits.prompt_tokens} in a prompt")
        if limits.queued is not None and self.num_queued >= self.share(limits.queued):
            raise self._reached(f"{limits.queued} waiting prompts", RETRY_S)
        self._check_window(self.minute, limits.tokens_per_minute, num_tokens, "minute")
        self._check_window(self.day, limits.tokens_per_day, num_tokens, "day")

    def add(self, num_tokens: int) -> None:
        """Count tokens. Mutates: self"""
        self.minute.add(num_tokens)
        self.day.add(num_tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return OpenAI's x-ratelimit headers of the limits that there are."""
        limits, found = self.limits, []
        if limits.requests is not None:
            left = max(0, self.share(limits.requests) - self.num_open)
            found += _headers("requests", limits.requests, left, RETRY_S if not left else 0.0)
        window, limit = self.minute, limits.tokens_per_minute
        if limit is None:
            window, limit = self.day, limits.tokens_per_day
        if limit is not None:
            left = max(0, self.share(limit) - window.used())
            found += _headers("tokens", limit, left, window.reset_s())
        return found

    def _check_window(self, window: Window, limit: int | None, num_tokens: int, name: str) -> None:
        if limit is None:
            return
        if num_tokens > self.share(limit):
            raise self._too_long(num_tokens, f"{self.share(limit)} in each {name}")
        if window.used() + num_tokens > self.share(limit):
            raise self._reached(f"{limit} tokens in each {name}", window.reset_s())

    def _reached(self, limit: str, retry_after_s: float) -> LimitReached:
        return LimitReached(f"{self._what} may use {limit}.", retry_after_s=retry_after_s)

    def _too_long(self, num_tokens: int, limit: str) -> RequestError:
        return RequestError(
            f"the prompt has {num_tokens} tokens; {self._what} may use {limit}.",
            fix="shorten it, or ask the operator for a higher limit.",
            code="context_length_exceeded",
        )


def _headers(what: str, limit: int, left: int, reset_s: float) -> list[tuple[bytes, bytes]]:
    """Return three headers. Source: OpenAI's API reference, "Rate limits in headers"."""
    values = (("limit", str(limit)), ("remaining", str(left)), ("reset", _duration(reset_s)))
    return [(f"x-ratelimit-{word}-{what}".encode(), text.encode()) for word, text in values]


def _duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: 6m0s, 1.5s, 20ms."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number or unit == "s")
