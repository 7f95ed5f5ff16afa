"""Supervised tasks and threads: long-lived ones that never end unnoticed.

A task that raises is logged, counted and restarted after a wait, which grows while it keeps
failing. /health names those that failed within the last minute; `dovetail:task_failures` counts all
failures.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

logger = logging.getLogger("dovetail.tasks")
FIRST_WAIT_S = 0.1
LAST_WAIT_S = 30.0
CALM_S = 60.0
"""A task counts as healthy again after this time without a failure."""

_failed_s: dict[str, float] = {}
_lock = threading.Lock()


def failing() -> tuple[str, ...]:
    """Return the names of this process's tasks that failed within the last minute."""
    since_s = time.monotonic() - CALM_S
    with _lock:
        return tuple(sorted(name for name, at_s in _failed_s.items() if at_s > since_s))


def note_failure(name: str, error: BaseException) -> None:
    """Log and count a task's failure."""
    from dovetail.observability import metrics  # its import decides where metrics are stored

    logger.error("the task %s failed: %s: %s", name, type(error).__name__, error, exc_info=error)
    with _lock:
        _failed_s[name] = time.monotonic()
    metrics.TASK_FAILURES.labels(name).inc()


class _Waits:
    """The wait after each failure before a task is restarted."""

    def __init__(self) -> None:
        self._next_s = FIRST_WAIT_S
        self._began_s = time.monotonic()

    def after_failure(self) -> float:
        """Return the seconds to wait: few after a long time without failures. Mutates: self"""
        now_s = time.monotonic()
        if now_s - self._began_s > CALM_S:
            self._next_s = FIRST_WAIT_S
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, LAST_WAIT_S)
        self._began_s = now_s + wait_s
        return wait_s


async def run_supervised(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it returns; restart it after each failure."""
    waits = _Waits()
    while True:
        try:
            return await work()
        except Exception as error:
            note_failure(name, error)
        await asyncio.sleep(waits.after_failure())


def supervised(name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Return a task of the running loop that runs `work` until it returns or is cancelled."""
    return asyncio.get_running_loop().create_task(run_supervised(name, work), name=name)


def supervised_thread(
    name: str,
    work: Callable[[], None],
    *,
    is_over: threading.Event | None = None,
    end: Callable[[], None] | None = None,
) -> threading.Thread:
    """Return an unstarted thread that runs `work` until it returns, restarting it after failures
    unless `is_over`. Finally calls `end`."""
    over = is_over or threading.Event()

    def run() -> None:
        waits = _Waits()
        try:
            while not _has_returned(name, work):
                if over.wait(waits.after_failure()):
                    return
        finally:
            if end is not None:
                end()

    return threading.Thread(target=run, name=name, daemon=True)


def _has_returned(name: str, work: Callable[[], None]) -> bool:
    try:
        work()
    except Exception as error:
        note_failure(name, error)
        return False
    return True
