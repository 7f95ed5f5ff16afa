"""Longest prefix: the request goes first whose prompt is cached furthest, until one waits too long.

Requests that share a prefix run close together, before it is evicted, and those that wait profit
from what the running ones add to the cache.
Source: Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs (NeurIPS
2024), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestNow, SchedulingPolicy


class LongestPrefix(SchedulingPolicy):
    """Orders requests by how many of their tokens need no computation, then by arrival.

    One that arrived more than `max_wait_s` ago precedes all that did not, so that none starves.
    The running request with the fewest computed tokens yields: it loses the least.
    """

    info = Info(
        summary="most tokens in the prefix cache first; who has waited too long goes before",
        source="https://arxiv.org/abs/2312.07104",
    )
    keys_move: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """How long a request may be overtaken."""

        max_wait_s: float = field(
            default=10.0,
            metadata={
                "help": "how long after its arrival a request may be overtaken by ones with longer "
                "cached prefixes",
                "unit": "seconds",
                "ge": 0,
            },
        )

    def key(self, request: RequestNow) -> tuple[float, ...]:
        """Return (0 for one that has waited too long, minus the cached tokens, arrival time)."""
        if request.now_s - request.arrival_s > self.options.max_wait_s:
            return (0.0, 0.0, request.arrival_s)
        return (1.0, -float(request.num_prefix_tokens), request.arrival_s)
