"""A plugin that imports its optional package at once (colorsys stands for a heavy one)."""

from __future__ import annotations

import colorsys  # noqa: F401

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.scheduling_policy import RequestView, SchedulingPolicy


class EagerImport(SchedulingPolicy):
    """Right but for its imports."""

    info = Info(summary="imports early", requires=("colorsys",))

    def key(self, request: RequestView) -> tuple[float, ...]:
        """Return the arrival."""
        return (request.arrival_s,)
