"""Restarts: whether a dead engine is started again, and whether its requests run again.

The policy alone: it knows neither processes nor how requests are sent. A restart counts for
WINDOW_S; with `limit` of them in that time the engine is given up.
"""

from __future__ import annotations

from collections import deque

import msgspec

from dovetail.errors import DovetailError, EngineDead, RequestError
from dovetail.interfaces.stats import RequestStats

WINDOW_S = 600.0
"""How long a restart counts against the limit."""
FIRST_WAIT_S, LAST_WAIT_S = 0.5, 10.0
"""The wait before a restart. It doubles each time the engine has died soon after its start."""
CALM_S = 5.0
"""An engine that has lived this long has not died soon."""

MOST_DEATHS = 3
"""A request that was in an engine at this many deaths is refused."""


class RunAgain(DovetailError):
    """The engine died before the request's first output, or was removed then, which no request
    causes (not `is_death`). `stats` describe this attempt."""

    is_death = True
    stats: RequestStats | None = None


def ending(reason: str, num_deaths: int, *, has_begun: bool) -> DovetailError:
    """Return what ends a request's attempt in an engine that has died because of `reason`: RunAgain
    or an error. It was present at `num_deaths` deaths before; `has_begun`: it has had output."""
    if has_begun:
        what = f"the engine died after the answer had begun: {reason}"
        return EngineDead(what, fix="send the request again.")
    if num_deaths + 1 < MOST_DEATHS:
        return RunAgain(reason)
    return RequestError(
        f"the request was in an engine at each of {MOST_DEATHS} deaths, so it is not run again. "
        f"The last death: {reason}",
        code="engine_died_each_time",
        status=422,
    )


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's life so far, which the process that starts it reports to other API processes:
    its process id (0: none now), how often it was started again, why it last died ("": never),
    and whether it has been given up."""

    pid: int = 0
    restarts: int = 0
    reason: str = ""
    is_over: bool = False


class Restarts:
    """The restarts of one engine, or of several that live and die together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._restarted_s: deque[float] = deque()
        self._ready_s = float("-inf")
        self._wait_s = FIRST_WAIT_S

    def note_ready(self, now_s: float) -> None:
        """Record that the engine accepts requests again. Mutates: self"""
        self._ready_s = now_s

    def wait_after_death(self, now_s: float) -> float | None:
        """Return how many seconds after a death, or a failed start, the engine is to be started
        again; None if it has been so too often. Mutates: self"""
        while self._restarted_s and self._restarted_s[0] <= now_s - WINDOW_S:
            self._restarted_s.popleft()
        if len(self._restarted_s) >= self._limit:
            return None
        has_died_soon = now_s - self._ready_s < CALM_S
        self._wait_s = min(2 * self._wait_s, LAST_WAIT_S) if has_died_soon else FIRST_WAIT_S
        self._ready_s = float("inf")  # until `note_ready`: a start that fails has died soon
        self._restarted_s.append(now_s)
        return self._wait_s

    def end_reason(self) -> str:
        """Return why the engine is given up."""
        often = f"{self._limit} times within {WINDOW_S / 60:g} minutes"
        return f"It was started again {often}, as often as --max-engine-restarts allows."
