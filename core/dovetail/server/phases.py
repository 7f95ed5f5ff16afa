"""How long each part of the start took, from the creation of the process."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import psutil

logger = logging.getLogger("dovetail.server")


class Phases:
    """Times of the start in order. Seconds."""

    def __init__(self) -> None:
        self._began_s = psutil.Process().create_time()
        self.durations_s: dict[str, float] = {"imports": time.time() - self._began_s}

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure a phase and log it. Mutates: self"""
        start_s = time.monotonic()
        yield
        self.note(name, time.monotonic() - start_s)

    def note(self, name: str, duration_s: float) -> None:
        """Record a phase. Mutates: self"""
        self.durations_s[name] = duration_s
        logger.info("start: %s took %.2f s", name, duration_s)

    def total_s(self) -> float:
        """Return the seconds since the process was created."""
        return time.time() - self._began_s
