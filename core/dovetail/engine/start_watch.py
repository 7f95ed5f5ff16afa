"""StartWatch: how long each part of an engine's start takes."""

from __future__ import annotations

import time
from collections.abc import Callable

Report = Callable[[str, float], None]
"""Called with the name and the seconds of each part of the start-up."""


class StartWatch:
    """Reports the seconds since the last lap."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._started_s = time.monotonic()

    def lap(self, name: str) -> None:
        """Report a part that has finished. Mutates: self"""
        now_s = time.monotonic()
        if self._report is not None:
            self._report(name, now_s - self._started_s)
        self._started_s = now_s
