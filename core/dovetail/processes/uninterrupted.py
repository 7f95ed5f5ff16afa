"""Complete cleanup in an event loop even if the task is cancelled.

A cancellation interrupts the current `await`. In a `finally` block the rest is then never run: a
file stays open, a queue slot stays taken. `uninterrupted` delays the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, which completes even if the caller is cancelled; the
    cancellation is raised afterwards. Raises: what `work` raises"""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (error_of_work := task.exception()) is not None:
        raise cancelled from error_of_work
    raise cancelled


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return when all have ended, whatever their outcome."""
    for task in tasks:
        task.cancel()
    await uninterrupted(_all_done(tasks))


async def _all_done(tasks: tuple[asyncio.Future[Any], ...]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
