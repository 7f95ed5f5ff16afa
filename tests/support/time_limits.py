"""A pytest plugin: one thread watches the time limits of all tests.

pytest-timeout starts and joins a thread for each test, which costs as much as a small test does.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

PERIOD_S = 1.0


class TimeLimits:
    """Ends the process whose test runs longer than its limit, as pytest-timeout's threads do: with
    the stacks of all threads."""

    def __init__(self) -> None:
        self.process = 0
        self.running: tuple[float, Any, Any] | None = None
        """When the running test is over its limit, the test, and pytest-timeout's settings."""

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Watch a test from now on, in the place of pytest-timeout. Mutates: self"""
        self.running = (time.monotonic() + settings.timeout, item, settings)
        if self.process != os.getpid():
            self.process = os.getpid()
            threading.Thread(target=self._watch, name="time limits", daemon=True).start()
        return True

    def pytest_timeout_cancel_timer(self) -> bool:
        """Watch no test until the next one begins. Mutates: self"""
        self.running = None
        return True

    def _watch(self) -> None:
        from pytest_timeout import timeout_timer  # type: ignore[import-untyped]

        while True:
            time.sleep(PERIOD_S)
            running = self.running
            if running is not None and time.monotonic() > running[0]:
                timeout_timer(*running[1:])
