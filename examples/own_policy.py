"""A scheduling policy in one file: the shortest prompt goes first.

Used by swap_by_name.py, or on the command line:
`dovetail serve --scheduling-policy examples/own_policy.py:ShortestFirst`.
"""

from __future__ import annotations

from dovetail.interfaces import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class ShortestFirst(SchedulingPolicy):
    """Orders waiting requests by the length of their prompt."""

    info = Info(summary="the shortest prompt goes first")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the prompt's length."""
        return (float(request.num_prompt_tokens),)
