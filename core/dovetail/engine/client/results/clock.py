"""RequestClock: the timing of one client's request, from the engine's timestamps.

All times are monotonic seconds, which the processes of one machine share. Times of an engine on
another machine are converted to this machine's clock.
"""

from __future__ import annotations

from collections import deque

from dovetail.engine.client.results.outputs import RequestMetrics
from dovetail.engine.messages import RequestUpdate
from dovetail.interfaces.stats import RequestTimes

LEAD_SAMPLES = 64


class ClockLead:
    """How far another machine's monotonic clock is ahead of this one's, estimated from replies with
    its time. The fastest recent reply is the most accurate: its error is at most half the round
    trip. Source: the clock filter of RFC 5905, section 10.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=LEAD_SAMPLES)

    def note(self, asked_s: float, there_s: float, answered_s: float) -> float:
        """Return the lead in seconds, given a reply with the time `there_s`. Mutates: self"""
        self._samples.append((answered_s - asked_s, there_s - (asked_s + answered_s) / 2))
        return min(self._samples)[1]


class RequestClock:
    """Times of a request with `n` completions; 0 means not yet.

    `gaps_s` has one entry per token except each completion's first. `forward_s` and `execute_s` are
    the maximum over the completions.
    """

    __slots__ = (
        "_drafts",
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
        self._drafts: dict[str, tuple[int, int]] = {}

    def note(self, update: RequestUpdate, lead_s: float = 0.0) -> None:
        """Record when the request first got a row, and its step times. The engine's clock is ahead
        by `lead_s`. Mutates: self"""
        timings = update.timings
        if update.num_draft_tokens:
            counts = update.num_draft_tokens, update.num_accepted_tokens
            self._drafts[update.request_id] = counts
        if not self.scheduled_s and timings.scheduled_s:
            self.scheduled_s = timings.scheduled_s - lead_s
        self.forward_s = max(self.forward_s, timings.forward_s)
        self.execute_s = max(self.execute_s, timings.execute_s)

    def note_tokens(self, index: int, count: int, now_s: float) -> None:
        """Record when `count` tokens of a completion were sampled. Mutates: self

        Tokens that arrive together share the time since the previous token.
        """
        last_s = self._last_s[index]
        if last_s:
            self.gaps_s += [(now_s - last_s) / count] * count
        else:
            # The first token has no gap; tokens that came with it have gap 0.
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
            num_draft_tokens=sum(drafted for drafted, _ in self._drafts.values()),
            num_accepted_tokens=sum(accepted for _, accepted in self._drafts.values()),
        )

    def times(self, ended_s: float) -> RequestTimes:
        """Return the times of the request, finished at `ended_s`."""
        return RequestTimes(
            arrival_s=self.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            ended_s=ended_s,
        )
