"""Clean up within an event loop to the end, also while the task is cancelled.

A cancellation ends the `await` it meets. Where that is one of a `finally`, what follows it is never
run: a file stays open, a queue keeps a place. `uninterrupted` lets the cancellation wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, which runs to its end even if the caller is cancelled before;
    the cancellation is raised after it. Raises: what `work` raises"""
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
    """Cancel tasks and return when they have ended, however they did."""
    for task in tasks:
        task.cancel()
    await uninterrupted(_all_done(tasks))


async def _all_done(tasks: tuple[asyncio.Future[Any], ...]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
