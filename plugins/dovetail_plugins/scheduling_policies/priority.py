"""Priority: smaller `priority` values first, arrival among equals.

A stream of urgent requests can hold back the others for as long as it lasts.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class PriorityFirst(SchedulingPolicy):
    """Orders requests by their `priority` field, then by arrival."""

    info = Info(summary="smaller priority values first, then arrival; the last of them yields")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return (priority, arrival time)."""
        return (request.priority, request.arrival_s)
