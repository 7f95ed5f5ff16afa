"""StatLoggers: the chosen stat loggers behind one call, none of which can stop the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dovetail import registry
from dovetail.interfaces.spec import Selection
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats

logger = logging.getLogger("dovetail.stats")


class StatLoggers:
    """Hands every number to every logger. One that raises is reported and left out from then."""

    def __init__(self, loggers: Sequence[StatLogger]) -> None:
        self._loggers = list(loggers)

    @classmethod
    def build(
        cls, selections: Sequence[Selection], model_name: str, max_model_tokens: int
    ) -> StatLoggers:
        """Return the loggers that were chosen. Raises: PluginError"""
        made = [
            registry.load_selection(selection)(
                registry.build_options(selection), model_name, max_model_tokens
            )
            for selection in selections
        ]
        return cls(made)

    def step(self, stats: StepStats) -> None:
        """Record a step."""
        self._each(lambda target: target.step(stats))

    def request(self, stats: RequestStats) -> None:
        """Record a finished request."""
        self._each(lambda target: target.request(stats))

    def flush(self) -> None:
        """Write what is held back."""
        self._each(lambda target: target.flush())

    def _each(self, call: Callable[[StatLogger], None]) -> None:
        for target in tuple(self._loggers):
            try:
                call(target)
            except Exception:
                logger.exception("stat logger %s raised and is left out", type(target).__name__)
                self._loggers.remove(target)
