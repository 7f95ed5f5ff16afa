"""A paused engine starts no step, and answers afterwards as if there had been no pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.messages import Leave, Pause, Ping, Resume
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.fakes.engine import fake_spec

QUIET_S = 0.15


@asynccontextmanager
async def running() -> AsyncIterator[AsyncEngine]:
    spec = msgspec.structs.replace(fake_spec(options={"delay_s": 0.005}), can_sleep=True)
    engine = await AsyncEngine.start(spec, in_process=True)
    try:
        yield engine
    finally:
        await engine.shutdown()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def within_limit() -> None:
        async with asyncio.timeout(40):
            await main

    asyncio.run(within_limit())


class Job:
    """A request that is under way, with what it has answered so far."""

    def __init__(self, engine: AsyncEngine, prompt: str, num_tokens: int = 60) -> None:
        self.pieces: list[str] = []
        self.reason: str | None = None
        params = SamplingParams(max_tokens=num_tokens, seed=1)
        self._outputs = engine.generate(prompt, params, prompt)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> str:
        async for output in self._outputs:
            self.pieces += [delta.text for delta in output.deltas]
            self.reason = output.deltas[-1].finish_reason
        return "".join(self.pieces)

    async def begun(self) -> None:
        while len(self.pieces) < 3:
            await asyncio.sleep(0.002)


async def is_paused(engine: AsyncEngine) -> list[bool]:
    return [status.condition.is_paused for status in await engine.call_each(Ping())]


def test_requests_keep_their_place_or_end_or_finish_and_new_ones_wait() -> None:
    async def main() -> None:
        async with running() as engine:
            wanted = {prompt: await Job(engine, prompt).task for prompt in ("old", "new")}
            for mode in ("keep", "abort", "wait"):
                old = Job(engine, "old")
                await old.begun()
                pausing = asyncio.create_task(engine.call_each(Pause(mode=mode)))
                await asyncio.sleep(0.01)
                new = Job(engine, "new")  # it arrives while the others may still finish
                await pausing
                await asyncio.sleep(QUIET_S)
                at_rest = len(old.pieces)
                await asyncio.sleep(QUIET_S)
                assert (len(old.pieces), new.pieces) == (at_rest, [])
                assert await is_paused(engine) == [True]
                assert old.reason == {"keep": None, "abort": "abort", "wait": "length"}[mode]
                await engine.abort("nobody")
                await engine.reset_prefix_cache()
                await engine.call_each(Pause(mode="keep"))  # a second one changes nothing
                await engine.call_each(Resume())
                assert await new.task == wanted["new"]
                assert (await old.task == wanted["old"]) == (mode != "abort")
                assert await is_paused(engine) == [False]

    run(main())


def test_what_cannot_be_is_refused_and_waiting_requests_can_be_aborted() -> None:
    async def main() -> None:
        async with running() as engine:
            old = Job(engine, "old")
            await old.begun()
            with pytest.raises(RequestError, match="does not preempt"):  # the fake scheduler
                await engine.call_each(Pause(mode="keep", drops=True))
            assert await is_paused(engine) == [False]
            pausing = asyncio.create_task(engine.call_each(Pause(mode="wait")))
            await asyncio.sleep(0.02)
            await engine.call_each(Resume())
            with pytest.raises(RequestError, match="before it had paused") as caught:
                await pausing
            assert caught.value.status == 409
            await engine.call_each(Pause(mode="keep"))
            new = Job(engine, "new")
            await asyncio.sleep(0.05)
            await engine.abort("new")
            await new.task
            assert (new.pieces, new.reason) == ([""], "abort")
            await engine.sleep()  # ends what waits too; the pause outlasts it
            assert (await old.task, old.reason)[1] == "abort"
            await engine.wake_up()
            assert await is_paused(engine) == [True]
            late = Job(engine, "late")
            await engine.call_each(Resume())
            assert len(await late.task) > 3

    run(main())


def test_an_engine_can_leave_when_it_has_no_requests_but_those_that_came_late() -> None:
    async def main() -> None:
        async with running() as engine:
            wanted = {prompt: await Job(engine, prompt).task for prompt in ("old", "late")}
            old = Job(engine, "old")
            await old.begun()
            await engine.call_each(Leave(engine=7))  # another one
            assert not engine.states()[0].is_leaving
            leaving = asyncio.create_task(engine.call_each(Leave(engine=0)))
            while not engine.states()[0].is_leaving:
                await asyncio.sleep(0.002)
            late = Job(engine, "late")
            assert not leaving.done()
            await leaving
            assert await old.task == wanted["old"]
            await asyncio.sleep(QUIET_S)
            assert late.pieces == []
            await engine.call_each(Leave(engine=0, leaves=False))
            assert await late.task == wanted["late"]
            assert not engine.states()[0].is_leaving

    run(main())
