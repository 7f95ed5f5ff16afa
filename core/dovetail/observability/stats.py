"""StatLoggers: calls all chosen stat loggers; an error in one cannot stop the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Self

from dovetail import registry
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats, TokenStats

logger = logging.getLogger("dovetail.stats")


class StatLoggers:
    """Passes every record to every logger. A logger that raises is reported and then left out."""

    def __init__(self, loggers: Sequence[StatLogger]) -> None:
        self._loggers = list(loggers)

    @classmethod
    def build(cls, spec: EngineSpec, *, is_offline: bool = False) -> Self:
        """Return the chosen loggers; with `is_offline` only those that support offline requests.

        Raises: PluginError
        """
        name = spec.model_names[0]
        chosen = [(s, registry.admin.load_selection(s)) for s in spec.stat_loggers]
        loggers: list[StatLogger] = [
            registry.make(selection, name, spec.run.max_model_tokens)
            for selection, plugin in chosen
            if not is_offline or "offline" in plugin.capabilities
        ]
        stat_loggers = cls(loggers)
        stat_loggers.expect([one.engine for one in spec.every()])
        return stat_loggers

    def expect(self, engines: Sequence[int]) -> None:
        """Prepare for the numbers of these engines."""
        self._each(lambda target: target.expect(engines))

    def step(self, stats: StepStats) -> None:
        """Record a step."""
        self._each(lambda target: target.step(stats))

    def tokens(self, stats: TokenStats) -> None:
        """Record tokens that reached their requests."""
        self._each(lambda target: target.tokens(stats))

    def request(self, stats: RequestStats) -> None:
        """Record a finished request."""
        self._each(lambda target: target.request(stats))

    def flush(self) -> None:
        """Write buffered records."""
        self._each(lambda target: target.flush())

    def close(self) -> None:
        """Let every logger write its remaining records, which may take seconds. Mutates: removes
        them all"""
        self._each(lambda target: target.close())
        self._loggers.clear()

    def _each(self, call: Callable[[StatLogger], None]) -> None:
        for target in tuple(self._loggers):
            try:
                call(target)
            except Exception:
                logger.exception("stat logger %s raised and is left out", type(target).__name__)
                self._loggers.remove(target)
