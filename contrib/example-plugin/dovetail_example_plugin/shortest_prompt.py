"""ShortestPrompt: short prompts first, with an allowance that grows while a request waits.

Shortest job first with linear aging (Silberschatz et al., Operating System Concepts, "Scheduling
Algorithms").
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class ShortestPrompt(SchedulingPolicy):
    """A request's key is its arrival, put off by a moment for every token of its prompt.

    Since every key grows with arrival time, a long prompt is overtaken only by requests that
    arrive within its own delay: it waits, but not for ever.
    """

    interface_version = 1
    info = Info(summary="short prompts first; long ones wait a bounded time")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """How much a token of prompt puts a request off."""

        wait_s_per_token: float = field(
            default=0.01,
            metadata={
                "help": "how much later a request starts per prompt token",
                "unit": "seconds",
                "ge": 0,
            },
        )

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the time at which the request would have its turn."""
        delay_s = request.num_prompt_tokens * self.options.wait_s_per_token
        return (float(request.priority), request.arrival_s + delay_s)
