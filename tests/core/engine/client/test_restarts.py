"""Engines that die are started again, and their requests without output run again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest

from dovetail.engine.client import restarts
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.engine.client.restarts import Restarts
from dovetail.engine.messages import Leave, ListAdapters, Pause, Ping, Resume
from dovetail.errors import EngineDead, Overloaded, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineShare, EngineSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail.observability import metrics
from dovetail.processes.uninterrupted import ended
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of, loggers_of, num_open, router_of
from support.orphans import command_of

LIMIT_S = 20.0


class Turns(Router):
    """Takes the engines in turn, and notes what it is to forget."""

    info = Info(summary="test router")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self.forgotten: list[int] = []
        self._turn = 0

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the next engine."""
        self._turn += 1
        return engines[self._turn % len(engines)].number

    def forget(self, engine: int) -> None:
        """Note it."""
        self.forgotten.append(engine)


class Ends(StatLogger):
    """Counts how requests end."""

    info = Info(summary="test logger")

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.reasons: list[str] = []

    def step(self, stats: StepStats) -> None:
        """Keep nothing."""

    def request(self, stats: RequestStats) -> None:
        """Keep the reason."""
        self.reasons.append(stats.finish_reason)


def spec_of(count: int, *, max_restarts: int = 5, **changes: Any) -> EngineSpec:
    return msgspec.structs.replace(
        fake_spec(**changes),
        max_restarts=max_restarts,
        can_sleep=True,
        num_engines=count,
        shares=tuple(EngineShare(engine=number) for number in range(count)),
        router=Selection(kind="router", name="turns", target=f"{__file__}:Turns"),
        stat_loggers=(Selection(kind="stat_logger", name="e", target=f"{__file__}:Ends"),),
    )


@asynccontextmanager
async def running(
    count: int = 1, *, in_process: bool = False, **changes: Any
) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(spec_of(count, **changes), in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()
        assert num_open(engine) == 0


@asynccontextmanager
async def second_process(engine: AsyncEngine) -> AsyncIterator[AsyncEngine]:
    """Yield the same engines, as another API process uses them."""
    other = await AsyncEngine.attach(engine.addresses_for(1), engine.spec, process=1)

    async def follow() -> None:
        while True:
            other.follow(engine.lives)
            await asyncio.sleep(0.05)

    following = asyncio.create_task(follow())
    try:
        yield other
    finally:
        await ended(following)
        await other.shutdown()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_WAIT_S", 0.05)


async def whole(engine: AsyncEngine, prompt: str = "prompt", **fields: Any) -> str:
    """Return the text of a request with one output, at the end."""
    params = SamplingParams(**{"max_tokens": 40, "seed": 1} | fields)
    stream = engine.generate(prompt, params, prompt, is_whole=True)
    return "".join([delta.text async for output in stream for delta in output.deltas])


def pid_of(engine: AsyncEngine, number: int = 0) -> int:
    host = engine.hosts[number]
    assert isinstance(host, EngineProcess)
    return host.pid


async def until(claim: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not claim():
            await asyncio.sleep(0.01)


def value_of(name: str) -> float:
    lines = metrics.exposition().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"dovetail:{name} ")]
    return float(line.rsplit(" ", 1)[1])


def test_restarts_wait_longer_each_time_and_count_for_ten_minutes() -> None:
    policy = Restarts(3)
    assert policy.wait_after_death(1000.0) == restarts.FIRST_WAIT_S
    policy.note_ready(1001.0)
    assert policy.wait_after_death(1002.0) == 2 * restarts.FIRST_WAIT_S  # soon after its start
    assert policy.wait_after_death(1003.0) == 4 * restarts.FIRST_WAIT_S  # the start has failed
    policy.note_ready(1004.0)
    assert policy.wait_after_death(1030.0) is None
    assert "started again 3 times within 10 minutes" in policy.end_reason()
    policy.note_ready(1600.5)
    assert policy.wait_after_death(1601.0) == 8 * restarts.FIRST_WAIT_S  # two count still
    assert policy.wait_after_death(1601.5) is None
    assert Restarts(0).wait_after_death(0.0) is None
    patient = Restarts(100)
    assert [patient.wait_after_death(float(second)) for second in range(12)][-1] == 10.0


def test_requests_without_output_run_again_and_the_engine_comes_back() -> None:
    async def main() -> None:
        jobs = [{"prompt": "p" * (i + 1), "seed": i, "temperature": 1.0} for i in range(8)]
        async with running(2, options={"delay_s": 0.01}) as engine:
            wanted = await asyncio.gather(*(whole(engine, **job) for job in jobs))
            other = await AsyncEngine.attach(engine.addresses_for(0), engine.spec, process=1)
            again = value_of("requests_run_again_total")
            tasks = [
                asyncio.create_task(whole(one, **job)) for one in (engine, other) for job in jobs
            ]
            params = SamplingParams(max_tokens=200)
            streams = [engine.generate("s", params, f"s{number}") for number in range(2)]
            for stream in streams:
                await anext(stream)
            victim = pid_of(engine, 1)
            os.kill(victim, signal.SIGKILL)
            ends = await asyncio.gather(*map(_rest, streams), return_exceptions=True)
            (dead,) = [end for end in ends if isinstance(end, EngineDead)]
            assert "after the answer had begun" in dead.what and "signal 9" in dead.what
            assert await asyncio.gather(*tasks) == wanted * 2
            assert value_of("requests_run_again_total") - again >= 8
            assert router_of(engine).forgotten == router_of(other).forgotten == [1]
            await until(lambda: engine.states()[1].reason is None)
            other.give_up({1: (victim, "an old report")})
            other.follow(engine.lives)
            await until(lambda: other.states()[1].reason is None)
            for one in (engine, other):
                states = [(state.restarts, bool(state.last_reason)) for state in one.states()]
                assert states == [(0, False), (1, True)]
                assert await asyncio.gather(*(whole(one, **job) for job in jobs)) == wanted
            assert pid_of(engine, 1) != victim
            (ledger,) = loggers_of(engine)
            assert ledger.reasons.count("error") == 1
            engine.give_up(other.given_up() | {1: (victim, "an old report")})
            assert all(state.reason is None for state in engine.states())
            await other.shutdown()
            assert num_open(other) == 0

    async def _rest(stream: Any) -> int:
        return len([output async for output in stream])

    asyncio.run(main())


def test_a_request_that_kills_engines_is_refused_and_takes_no_other_along() -> None:
    async def main() -> None:
        async with (
            running(2, options={"delay_s": 0.005}, max_restarts=20) as engine,
            second_process(engine) as other,
        ):
            both = [(own, "p" * n) for own in (engine, other) for n in range(1, 5)]
            wanted = await asyncio.gather(*(whole(*each, max_tokens=160) for each in both))
            tasks = [asyncio.create_task(whole(*each, max_tokens=160)) for each in both]
            with pytest.raises(RequestError, match="at each of 3 deaths") as caught:
                await whole(engine, "KILL")
            assert caught.value.code == "engine_died_each_time"
            assert await asyncio.gather(*tasks) == wanted
            assert sum(life.restarts for life in engine.lives) in (2, 3)

    asyncio.run(main())


def test_requests_wait_for_the_only_engine_until_it_is_given_up() -> None:
    async def main() -> None:
        children = set(psutil.Process().children())
        async with running(options={"delay_s": 0.01}, max_restarts=2) as engine:
            wanted = await whole(engine)
            await engine.sleep()
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.states()[0].is_restarting)
            assert engine.is_alive and engine.death_reason is None
            with pytest.raises(Overloaded, match=r"within 0\.001 s"):
                await engine.call_each(ListAdapters(), 0.001)
            assert await engine.is_sleeping()  # answered by the new engine
            assert engine.asleep
            await engine.wake_up()
            begun = asyncio.create_task(whole(engine))
            await until(lambda: engine.load()[0])
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.states()[0].is_restarting)
            new = asyncio.create_task(whole(engine))
            aborted = asyncio.create_task(whole(engine, "to be aborted"))
            await asyncio.sleep(0)
            await engine.abort("to be aborted")
            assert await begun == await new == wanted
            assert len(await aborted) < len(wanted)
            begun = asyncio.create_task(whole(engine))
            await until(lambda: engine.load()[0])
            os.kill(pid_of(engine), signal.SIGKILL)
            with pytest.raises(EngineDead, match=r"signal 9\. It was started again 2 times"):
                await begun
            async with asyncio.timeout(LIMIT_S):
                await engine.wait_end()
            assert not engine.is_alive and "--max-engine-restarts" in str(engine.death_reason)
        assert set(psutil.Process().children()) <= children

    asyncio.run(main())


def test_an_engine_that_comes_back_is_paused_too() -> None:
    async def main() -> None:
        async with running(2) as engine, second_process(engine) as other:
            both = [(own, "p" * n) for own in (engine, other) for n in range(1, 4)]
            wanted = await asyncio.gather(*(whole(*each) for each in both))
            await other.call_each(Pause(mode="keep"))
            tasks = [asyncio.create_task(whole(*each)) for each in both]
            await asyncio.sleep(0.05)
            os.kill(pid_of(engine, 1), signal.SIGKILL)
            for one in (engine, other):
                await until(lambda one=one: one.states()[1].restarts and not one.states()[1].reason)
                statuses = await one.call_each(Ping())
                assert [status.condition.is_paused for status in statuses] == [True, True]
            assert not any(task.done() for task in tasks)
            await until(lambda: sum(engine.load()) == len(tasks))
            await engine.call_each(Resume())
            assert await asyncio.gather(*tasks) == wanted

    asyncio.run(main())


def test_engines_leave_and_come_back_and_no_request_is_lost() -> None:
    """In turns, asked of either API process, under load of both."""

    async def main() -> None:
        async with (
            running(3, options={"delay_s": 0.005}, max_restarts=0) as engine,
            second_process(engine) as other,
        ):
            both = [(own, "p" * n) for own in (engine, other) for n in range(1, 5)]
            wanted = {each: await whole(*each) for each in both}
            ends: list[bool] = []
            is_over = asyncio.Event()

            async def ask(each: Any) -> None:
                while not is_over.is_set():
                    ends.append(await whole(*each) == wanted[each])

            tasks = [asyncio.create_task(ask(each)) for each in both]

            async def come_and_go(asked: AsyncEngine, number: int, wait_s: float) -> None:
                pid = pid_of(engine, number)
                await asked.call_each(Leave(engine=number))
                for one in (engine, other):
                    await until(lambda one=one: one.states()[number].is_leaving)
                await asyncio.sleep(wait_s)  # if short, its requests run again: that is no death
                removed = {number: (asked.lives[number].pid, "it was removed.")}
                asked.give_up(removed)
                engine.give_up(removed)  # the parent has heard of it by a beat
                await until(lambda: engine.lives[number].is_over and not psutil.pid_exists(pid))
                assert engine.is_alive and not engine.states()[number].is_restarting
                await asyncio.sleep(0.05)
                asked.add(number)
                engine.start_wanted(asked.take_wanted())
                for one in (engine, other):
                    await until(lambda one=one: one.states()[number].reason is None)
                    assert not one.states()[number].is_leaving

            for turn in range(6):
                await come_and_go((engine, other)[turn % 2], turn % 3, 0.5 if turn < 3 else 0.0)
            is_over.set()
            await asyncio.gather(*tasks)
            assert len(ends) > 20 and all(ends)
            assert [state.restarts for state in engine.states()] == [2, 2, 2]
            assert router_of(engine).forgotten == [0, 1, 2, 0, 1, 2]

    asyncio.run(main())


def test_a_start_that_fails_is_tried_again_and_waiting_requests_end_with_the_last() -> None:
    async def main() -> None:
        async with running(options={"start_delay_s": 0.2}, max_restarts=2) as engine:
            old = {child.pid for child in psutil.Process().children()}
            os.kill(pid_of(engine), signal.SIGKILL)
            await until(lambda: engine.states()[0].is_restarting)
            waiting = asyncio.create_task(whole(engine))
            for _ in range(2):
                await until(lambda: _engines() - old)
                (child,) = _engines() - old
                old.add(child)
                os.kill(child, signal.SIGKILL)
            with pytest.raises(EngineDead, match=r"could not be started again: .*signal 9"):
                await waiting
            assert engine.given_up() and not engine.is_alive

    def _engines() -> set[int]:
        found = psutil.Process().children()
        return {c.pid for c in found if "dovetail.engine.process" in command_of(c)}

    asyncio.run(main())


def test_a_server_that_shuts_down_starts_nothing_and_leaves_nothing() -> None:
    async def main() -> None:
        async with running(2, options={"start_delay_s": 0.5}) as engine:
            for number in range(2):
                os.kill(pid_of(engine, number), signal.SIGKILL)
            await until(lambda: all(state.is_restarting for state in engine.states()))
            waiting = asyncio.create_task(whole(engine))
            await asyncio.sleep(0.3)
        with pytest.raises(EngineDead, match="shut down"):
            await waiting

    before = set(psutil.Process().children())
    asyncio.run(main())
    assert set(psutil.Process().children()) <= before


def test_a_thread_stays_dead_and_says_why() -> None:
    async def main() -> None:
        async with running(in_process=True) as engine:
            connections_of(engine)[0].die("it is gone.")
            assert not engine.is_alive
            assert "it is gone. It is a thread of the server" in str(engine.death_reason)

    asyncio.run(main())
