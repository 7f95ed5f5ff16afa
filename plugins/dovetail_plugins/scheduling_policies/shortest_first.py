"""Shortest first, with ageing: short requests overtake long ones, but not for ever.

A request is due some time after its arrival, the later the more work it may be. One that came long
enough before a short one precedes it however long it is, so none starves.
Source: shortest job first with linear ageing; Kleinrock, Queueing Systems, volume 2 (1976), 3.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class ShortestFirst(SchedulingPolicy):
    """Orders requests by arrival plus a time in proportion to their work; the last one yields.

    The work is the prompt's tokens and the longest possible answer, which without `max_tokens` is
    the whole context.
    """

    info = Info(
        summary="short prompts with short answers first; a long request waits for a bounded time"
    )

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """How far a request may be overtaken."""

        wait_s_per_1000_tokens: float = field(
            default=10.0,
            metadata={
                "help": "how much later a request may come and still precede one with 1,000 more "
                "tokens of prompt and answer",
                "unit": "seconds",
                "ge": 0,
            },
        )

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return when the request is due."""
        wait_s = self.options.wait_s_per_1000_tokens * request.max_tokens / 1000
        return (request.arrival_s + wait_s,)
