"""First come, first served: the default order. No request can be overtaken, so none starves."""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class Fcfs(SchedulingPolicy):
    """Orders requests by arrival; the latest one yields."""

    info = Info(summary="first come, first served; the latest running request yields")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the arrival time."""
        return (request.arrival_s,)
