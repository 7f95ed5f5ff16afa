"""A scheduling policy with which a request can end its engine's process, as a fault in it would."""

from __future__ import annotations

import os

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy

WORD = "kill"


class Killing(SchedulingPolicy):
    """First come, first served. A request whose id begins with WORD ends the process."""

    info = Info(summary="ends the process at the request's wish")

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return when the request came."""
        if request.request_id.startswith(WORD):
            os._exit(9)
        return (request.arrival_s,)
