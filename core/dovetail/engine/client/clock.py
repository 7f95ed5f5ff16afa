"""RequestClock: what is known of one client's request in time, from the engine's own stamps.

All times are monotonic seconds, which the processes of one machine share.
"""

from __future__ import annotations

from dovetail.engine.client.outputs import RequestMetrics
from dovetail.engine.messages import RequestUpdate
from dovetail.interfaces.stats import RequestTimes


class RequestClock:
    """Times of a request with `n` completions; 0 is not yet.

    `gaps_s` holds one time per token but each completion's first; `forward_s` and `execute_s` are
    those of the completion that took part in most steps.
    """

    __slots__ = (
        "_last_s",
        "arrival_s",
        "execute_s",
        "first_token_s",
        "forward_s",
        "gaps_s",
        "last_token_s",
        "scheduled_s",
    )

    def __init__(self, arrival_s: float, n: int) -> None:
        self.arrival_s = arrival_s
        self.scheduled_s = 0.0
        self.first_token_s = 0.0
        self.last_token_s = 0.0
        self.forward_s = 0.0
        self.execute_s = 0.0
        self.gaps_s: list[float] = []
        self._last_s = [0.0] * n

    def note(self, update: RequestUpdate) -> None:
        """Record when the request took a row, and what its steps have cost. Mutates: self"""
        timings = update.timings
        if not self.scheduled_s:
            self.scheduled_s = timings.scheduled_s
        self.forward_s = max(self.forward_s, timings.forward_s)
        self.execute_s = max(self.execute_s, timings.execute_s)

    def note_tokens(self, index: int, count: int, now_s: float) -> None:
        """Record when `count` tokens of a completion were drawn. Mutates: self

        Tokens that came together share the time since the one before them.
        """
        last_s = self._last_s[index]
        if last_s:
            self.gaps_s += [(now_s - last_s) / count] * count
        else:
            # The first has nothing before it; those that came with it came at once.
            self.gaps_s += [0.0] * (count - 1)
        self.first_token_s = self.first_token_s or now_s
        self.last_token_s = self._last_s[index] = now_s

    def metrics(self) -> RequestMetrics:
        """Return the times known so far."""
        return RequestMetrics(
            arrival_s=self.arrival_s,
            first_scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
        )

    def times(self, ended_s: float) -> RequestTimes:
        """Return the times of the request, ended now."""
        return RequestTimes(
            arrival_s=self.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            ended_s=ended_s,
        )
