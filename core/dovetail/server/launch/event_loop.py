"""run_loop: run a process's main coroutine on uvloop and end it cleanly on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run_loop(main: Coroutine[Any, Any, int], stopped: Callable[[signal.Signals], int]) -> int:
    """Run `main` and return its status, or `stopped(signal)` if a signal ended it.

    SIGTERM and SIGINT cancel it until it installs its own handlers.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(main, stopped))


async def _until_stopped(
    main: Coroutine[Any, Any, int], stopped: Callable[[signal.Signals], int]
) -> int:
    task = asyncio.ensure_future(main)
    got: list[int] = []

    def stop(number: int) -> None:
        got.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not got:
            raise
        return stopped(signal.Signals(got[0]))
