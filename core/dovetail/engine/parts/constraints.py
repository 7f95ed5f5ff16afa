"""Constraints: a request with a constraint waits until every rank has loaded it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.parts.part import EnginePart
from dovetail.interfaces.executor import Loaded, Preparation

Load = Callable[[Preparation], Loaded]
"""Has every rank load something, in parallel with the steps."""


class Constraints(EnginePart):
    """Has the ranks load the constraints of requests."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def receive(self, active: ActiveRequest) -> None:
        """Start to load a request's constraint. Mutates: active"""
        constraint = active.request.sampling.constraint
        if constraint is not None:
            active.loads.append(self._load(constraint))
