"""Round robin: the engines in turn, whatever they have to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts


class RoundRobin(Router):
    """The engine after the last one; one that takes no requests loses its turn."""

    info = Info(summary="the engines in turn")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._count = facts.num_engines
        self._next = facts.process % facts.num_engines

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the next engine in turn that takes requests."""
        if len(engines) == self._count:
            number = self._next
        else:
            number = min(
                (engine.number for engine in engines),
                key=lambda number: (number - self._next) % self._count,
            )
        self._next = (number + 1) % self._count
        return number
