"""What is cleaned up is cleaned up whole, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.processes.uninterrupted import ended, uninterrupted


def test_work_goes_on_to_its_end_through_two_cancellations() -> None:
    done: list[int] = []

    async def work() -> None:
        for step in range(3):
            await asyncio.sleep(0.01)
            done.append(step)

    async def main() -> None:
        task = asyncio.ensure_future(uninterrupted(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == [0, 1, 2]


def test_its_result_and_its_error_are_the_caller_s() -> None:
    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert asyncio.run(uninterrupted(work(None))) == 7
    with pytest.raises(KeyError):
        asyncio.run(uninterrupted(work(KeyError())))


def test_tasks_have_ended_even_if_the_one_that_ends_them_is_cancelled() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)

    async def main() -> None:
        task: asyncio.Future[Any] = asyncio.ensure_future(slow_to_end())
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(ended(task))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert task.cancelled()

    asyncio.run(main())
