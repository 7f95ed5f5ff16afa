"""How long each phase of the start took, from the creation of the process."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

logger = logging.getLogger("dovetail.server")


class StartupTimer:
    """Duration and begin of each start-up phase, in seconds since exec."""

    def __init__(self) -> None:
        self._began_s = time.monotonic() - _process_age_s()
        self.durations_s: dict[str, float] = {"imports": self.total_s()}
        self.began_s: dict[str, float] = {"imports": 0.0}

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure a phase and log it. Mutates: self"""
        start_s = time.monotonic()
        yield
        self.note(name, time.monotonic() - start_s)

    def note(self, name: str, duration_s: float) -> None:
        """Record a phase that has just ended. Mutates: self"""
        self.durations_s[name] = duration_s
        self.began_s[name] = self.total_s() - duration_s
        logger.info("start: %s took %.2f s", name, duration_s)

    def note_parts(self, name: str, parts: Iterable[tuple[str, float]]) -> None:
        """Record the parts of a recorded phase, one after another up to its end. Mutates: self Time
        before the first part, such as starting a process, belongs to none of them."""
        durations = list(parts)
        at_s = self.began_s[name] + self.durations_s[name]
        for part, duration_s in reversed(durations):
            at_s -= duration_s
            self.began_s[f"{name}: {part}"] = at_s
        for part, duration_s in durations:
            self.durations_s[f"{name}: {part}"] = duration_s

    def total_s(self) -> float:
        """Return the seconds since the process was created."""
        return time.monotonic() - self._began_s


def _process_age_s() -> float:
    """Return the seconds since this process was created.

    On Linux it is computed from the start time in clock ticks since boot. psutil adds those to a
    boot time rounded to whole seconds. Source: proc(5), field 22 of /proc/pid/stat.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.time() - psutil.Process().create_time()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
