"""How long each part of the start took, from the creation of the process."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

logger = logging.getLogger("dovetail.server")


class StartupTimer:
    """Times of the start in order. Seconds."""

    def __init__(self) -> None:
        self._began_s = time.monotonic() - _process_age_s()
        self.durations_s: dict[str, float] = {"imports": self.total_s()}

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
        return time.monotonic() - self._began_s


def _process_age_s() -> float:
    """Return the seconds since this process was created.

    On Linux from its start in clock ticks since boot: psutil adds those to a boot time that is
    rounded to whole seconds. Source: proc(5), field 22 of /proc/pid/stat.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return time.time() - psutil.Process().create_time()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
