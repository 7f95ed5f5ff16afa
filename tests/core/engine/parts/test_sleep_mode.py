"""An engine sleeps once nothing runs, refuses requests with the way out, and tells everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.core import EngineCore
from dovetail.engine.messages import EngineCondition
from dovetail.engine.parts.sleep_mode import TAGS, SleepMode
from dovetail.errors import EngineAsleep, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_testing.fakes.engine import FakeExecutor, fake_spec
from support.inside import connections_of, executor_of, part_of, pool_of


def spec_with(*, can_sleep: bool = True, **options: Any) -> EngineSpec:
    return msgspec.structs.replace(fake_spec(options=options), can_sleep=can_sleep)


def core_with(**options: Any) -> tuple[EngineCore, FakeExecutor]:
    core = EngineCore(spec_with(**options))
    executor = executor_of(core)
    assert isinstance(executor, FakeExecutor)
    return core, executor


def test_both_fall_asleep_and_wake_up_one_by_one() -> None:
    core, executor = core_with()
    mode = part_of(core, SleepMode)
    mode.wake_up()
    mode.sleep(2)
    mode.sleep(2)
    assert (mode.level, mode.asleep) == (2, TAGS)
    assert core.stats().sleep_level == 2
    with pytest.raises(RequestError, match="level 2") as caught:
        mode.sleep(1)
    assert caught.value.status == 409
    mode.wake_up(["weights"])
    assert (mode.level, mode.asleep) == (2, ("kv_cache",))
    mode.wake_up()
    assert (mode.level, mode.asleep) == (0, ())
    assert executor.sleep_calls == [("sleep", 2), ("wake_up", "weights"), ("wake_up", "kv_cache")]


def test_what_cannot_be_is_refused() -> None:
    mode = part_of(core_with()[0], SleepMode)
    with pytest.raises(RequestError, match="level 3"):
        mode.sleep(3)
    with pytest.raises(RequestError, match='"pillow"'):
        mode.wake_up(["pillow"])
    unable = part_of(EngineCore(spec_with(can_sleep=False)), SleepMode)
    for call in (lambda: unable.sleep(1), unable.wake_up):
        with pytest.raises(RequestError) as caught:
            call()
        assert "--enable-sleep-mode" in str(caught.value)
    assert mode.asleep == unable.asleep == ()


def test_a_fault_changes_nothing() -> None:
    mode = part_of(core_with(sleep_fault="sleep")[0], SleepMode)
    with pytest.raises(RequestError, match="no room"):
        mode.sleep(1)
    assert mode.asleep == ()
    mode = part_of(core_with(sleep_fault="wake_up")[0], SleepMode)
    mode.sleep(1)
    with pytest.raises(RequestError, match="no room"):
        mode.wake_up()
    assert mode.asleep == TAGS


def test_prefixes_are_forgotten() -> None:
    core, _ = core_with()
    pool = pool_of(core.cache)
    taken = pool.take(1)
    pool.publish(0, taken[0], b"x")
    pool.release(taken)
    part_of(core, SleepMode).sleep(1)
    assert pool.find(0, b"x") == 0


# ---- as an API process sees it


@asynccontextmanager
async def running(spec: EngineSpec, *, in_process: bool = True) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(spec, in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()


async def generate(engine: AsyncEngine, num_tokens: int = 3) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=num_tokens)
    return [output async for output in engine.generate("abc", params, "r")]


def run(main: Coroutine[Any, Any, None]) -> None:
    async def within_limit() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(within_limit())


def test_requests_end_and_further_ones_are_refused() -> None:
    async def main() -> None:
        async with running(spec_with(delay_s=0.02)) as engine:
            task = asyncio.create_task(generate(engine, 200))
            while engine.load()[0] == 0:
                await asyncio.sleep(0.01)
            await engine.sleep()
            assert (await task)[-1].deltas[0].finish_reason == "abort"
            assert await engine.is_sleeping()
            with pytest.raises(EngineAsleep) as caught:
                await generate(engine)
            assert caught.value.status == 503 and "/wake_up" in str(caught.value)
            # This process has not heard of it: the engine itself refuses.
            connections_of(engine)[0].condition = EngineCondition()
            with pytest.raises(EngineAsleep, match="wake_up"):
                await generate(engine)
            await engine.wake_up()
            assert not await engine.is_sleeping()
            assert len((await generate(engine))[-1].deltas) == 1

    run(main())


def test_it_can_wait_for_requests_and_be_woken_while_it_does() -> None:
    async def main() -> None:
        async with running(spec_with(delay_s=0.02)) as engine:
            for is_woken in (False, True):
                task = asyncio.create_task(generate(engine, 20))
                while engine.load()[0] == 0:
                    await asyncio.sleep(0.01)
                bedtime = asyncio.create_task(engine.sleep(waits=True))
                await asyncio.sleep(0.05)
                with pytest.raises(EngineAsleep, match="about to sleep"):
                    await generate(engine)
                if is_woken:
                    await engine.wake_up()
                    with pytest.raises(RequestError, match="woken up before"):
                        await bedtime
                    await generate(engine)
                outputs = await task
                assert outputs[-1].deltas[0].finish_reason == "length"
                if not is_woken:
                    await bedtime
                    await engine.wake_up()

    run(main())


def test_every_api_process_knows() -> None:
    async def main() -> None:
        async with running(spec_with(), in_process=False) as first:
            second = await AsyncEngine.attach(first.addresses_for(0), first.spec)
            await first.sleep(2)
            await second.is_sleeping()
            assert first.asleep == second.asleep == TAGS
            third = await AsyncEngine.attach(first.addresses_for(0), first.spec)
            await third.is_sleeping()
            assert third.asleep == TAGS
            with pytest.raises(RequestError, match="pillow"):
                await third.wake_up(["pillow"])
            await third.wake_up()
            await first.is_sleeping()
            assert first.asleep == ()
            await second.shutdown()
            await third.shutdown()

    run(main())
