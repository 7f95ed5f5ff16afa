"""Least loaded: the engine with the fewest requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts
from dovetail_plugins.routers._candidates import Candidates


@dataclass(frozen=True, kw_only=True)
class _Options:
    waiting_weight: float = field(
        default=4.0,
        metadata={"help": "running requests that one waiting request counts as", "ge": 0.0},
    )


class LeastLoaded(Router):
    """Fewest requests, with a waiting one counted as several running ones; ties take turns."""

    info = Info(
        summary="the engine with the fewest requests; of more than 16, the best of 16 at random"
    )
    capabilities = frozenset({"loads"})
    Options = _Options

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._weight: float = options.waiting_weight
        self._candidates = Candidates(facts.process)

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the least loaded engine."""
        weight, best, min_load = self._weight, -1, float("inf")
        for engine in self._candidates.of(engines):
            load = engine.num_running + weight * engine.num_waiting
            if load < min_load:
                best, min_load = engine.number, load
        return best
