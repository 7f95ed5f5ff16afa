"""Several engines behind one AsyncEngine: answers, routing, what reaches each, and deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.connection import EngineConnection, Listener
from dovetail.engine.client.host import EngineProcess
from dovetail.engine.ipc.transport import MemoryLink
from dovetail.engine.messages import EngineCondition, Updates
from dovetail.errors import ConfigError, EngineAsleep, EngineDead, RequestFault
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineShare, EngineSpec, Selection
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of, grow_older, loggers_of, num_open, router_of

FIRST = 3
"""The number of the first engine: numbers need not begin at 0."""


class Turns(Router):
    """Takes the engines in turn, and notes what it sees."""

    info = Info(summary="test router")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self.facts = facts
        self.seen: list[tuple[RoutedRequest, list[tuple[int, int]]]] = []
        self.forgotten: list[int] = []

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView]) -> int:
        """Return the next engine; orders in the prompt come first."""
        self.seen.append((request, [(view.number, view.pending_tokens) for view in engines]))
        match bytes(request.prompt_ids):
            case b"raise":
                raise ZeroDivisionError("no reason")
            case b"nobody":
                return 7
        return engines[len(self.seen) % len(engines)].number

    def forget(self, engine: int) -> None:
        """Note it."""
        self.forgotten.append(engine)


class Ledger(StatLogger):
    """Keeps the numbers of the engines it hears of."""

    info = Info(summary="test logger")

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.expected: tuple[int, ...] = ()
        self.steps: dict[int, StepStats] = {}
        self.requests: list[RequestStats] = []

    def expect(self, engines: Sequence[int]) -> None:
        """Keep them."""
        self.expected = tuple(engines)

    def step(self, stats: StepStats) -> None:
        """Keep an engine's last."""
        self.steps[stats.engine] = stats

    def request(self, stats: RequestStats) -> None:
        """Keep it."""
        self.requests.append(stats)


def spec_of(count: int = 2, **changes: Any) -> EngineSpec:
    fields = {key: changes.pop(key) for key in ("can_sleep", "step_timeout_s") if key in changes}
    return msgspec.structs.replace(
        fake_spec(**changes),
        engine=FIRST,
        num_engines=count,
        shares=tuple(EngineShare(engine=FIRST + place) for place in range(count)),
        router=Selection(kind="router", name="turns", target=f"{__file__}:Turns"),
        stat_loggers=(Selection(kind="stat_logger", name="l", target=f"{__file__}:Ledger"),),
        **fields,
    )


@asynccontextmanager
async def running(
    count: int = 2, *, in_process: bool = True, **changes: Any
) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(spec_of(count, **changes), in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()


def test_answers_of_the_workers_of_all_engines_are_one_list() -> None:
    async def main() -> None:
        async with running() as engine:
            answers = await engine.collective_rpc(WorkerCall(method="m"))
            assert [answer["rank"] for answer in answers] == [0, 1, 0, 1]

    asyncio.run(main())


def ledger_of(engine: AsyncEngine) -> Any:
    (ledger,) = loggers_of(engine)
    return ledger


async def whole(engine: AsyncEngine, prompt: Any = "prompt", **fields: Any) -> list[str]:
    """Return the texts of a request's completions."""
    params = SamplingParams(**{"max_tokens": 10, "seed": 1} | fields)
    texts = [""] * params.n
    async for output in engine.generate(prompt, params, "r"):
        for delta in output.deltas:
            texts[delta.index] += delta.text
    return texts


def test_answers_are_those_of_one_engine_and_every_engine_gave_some() -> None:
    async def main() -> None:
        jobs = [{"prompt": "p" * (i + 1), "seed": i, "n": 1 + i % 3} for i in range(12)]
        async with running(1) as alone:
            wanted = [await whole(alone, **job) for job in jobs]
        async with running(3) as engine:
            assert await asyncio.gather(*(whole(engine, **job) for job in jobs)) == wanted
            numbers = Counter(stats.engine for stats in ledger_of(engine).requests)
            assert numbers == {FIRST: 4, FIRST + 1: 4, FIRST + 2: 4}
            ledger, wanted_numbers = ledger_of(engine), (FIRST, FIRST + 1, FIRST + 2)
            assert ledger.expected == tuple(sorted(ledger.steps)) == wanted_numbers
            assert router_of(engine).facts == RouterFacts(
                num_engines=3, block_tokens=4, cache_tokens=257 * 4, max_rows=64
            )
            request, _ = router_of(engine).seen[2]
            assert (bytes(request.prompt_ids), request.num_completions) == (b"ppp", 3)

    asyncio.run(main())


def test_loads_follow_what_was_sent_and_answered() -> None:
    async def main() -> None:
        async with running(max_rows=1, options={"delay_s": 0.002}) as engine:
            tasks = [asyncio.create_task(whole(engine, "x" * 50)) for _ in range(4)]
            while len(router_of(engine).seen) < 4:
                await asyncio.sleep(0)
            assert [pending for _, pending in router_of(engine).seen[3][1]] in (
                [50, 100],
                [100, 50],
            )
            assert sum(engine.load()) == 4
            await asyncio.gather(*tasks)
            await whole(engine, "y")
            assert [pending for _, pending in router_of(engine).seen[4][1]] == [0, 0]
            states = engine.states()
            assert [state.engine for state in states] == [FIRST, FIRST + 1]
            assert all(state.reason is None and state.running == 0 for state in states)

    asyncio.run(main())


def test_a_second_api_process_sees_what_the_first_has_sent() -> None:
    async def main() -> None:
        async with running(in_process=False, max_rows=1, options={"delay_s": 0.01}) as first:
            second = await AsyncEngine.attach(first.addresses_for(0), first.spec, process=1)
            try:
                assert router_of(second).facts.process == 1
                tasks = [
                    asyncio.create_task(whole(first, "x" * 40, max_tokens=60)) for _ in range(6)
                ]
                async with asyncio.timeout(2):
                    while sum(state.waiting for state in second.states()) < 4:
                        await asyncio.sleep(0.01)
                assert [state.running for state in second.states()] == [1, 1]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await second.shutdown()

    asyncio.run(main())


def test_an_engine_that_others_use_may_speak_before_this_process_is_open() -> None:
    async def main() -> None:
        steps: list[StepStats] = []
        connection = EngineConnection(
            0,
            fake_spec(),
            MemoryLink().client_end,
            None,
            Listener(outputs=print, step=steps.append, reset=print, death=print),
        )
        connection._hear(Updates((), (StepStats(num_running=2, num_waiting=5, kv_usage=0.5),)))
        assert (len(steps), connection.load(), connection.kv_usage) == (1, (2, 5), 0.5)
        assert (connection.num_running, connection.num_waiting) == (2, 5)

    asyncio.run(main())


def test_a_router_that_fails_ends_that_request_alone() -> None:
    async def main() -> None:
        async with running() as engine:
            other = asyncio.create_task(whole(engine, max_tokens=50))
            with pytest.raises(RequestFault, match="router turns raised ZeroDivisionError: no rea"):
                await whole(engine, "raise")
            with pytest.raises(RequestFault, match="router turns chose 7, but no engine"):
                await whole(engine, "nobody")
            assert len((await other)[0]) == 50
            assert num_open(engine) == 0

    asyncio.run(main())


def test_calls_and_aborts_reach_every_engine_that_they_concern() -> None:
    async def main() -> None:
        async with running(can_sleep=True, options={"delay_s": 0.002}) as engine:
            streams = [
                engine.generate("x", SamplingParams(max_tokens=200), f"r{number}")
                for number in range(2)
            ]
            for stream in streams:
                await anext(stream)
            for number in range(2):
                await engine.abort(f"r{number}")
            for stream in streams:
                *_, last = [output async for output in stream]
                assert last.deltas[0].finish_reason == "abort"
            await engine.reset_prefix_cache()
            assert sorted(router_of(engine).forgotten) == [0, 1]
            await engine.sleep()
            assert engine.asleep and await engine.is_sleeping()
            assert [bool(state.asleep) for state in engine.states()] == [True, True]
            with pytest.raises(EngineAsleep):
                await whole(engine)
            await engine.wake_up()
            assert not engine.asleep and not await engine.is_sleeping()
            assert len((await whole(engine))[0]) == 10

    asyncio.run(main())


def test_a_request_goes_to_an_engine_that_is_awake_and_moves() -> None:
    async def main() -> None:
        async with running() as engine:
            first, second = connections_of(engine)
            second.condition = EngineCondition(asleep=("weights",))
            assert engine.asleep == ()
            for _ in range(3):
                await whole(engine)
            second.condition = EngineCondition()
            # As if it had had a request for a minute and said nothing.
            grow_older(second, heard_s=60)
            second._num_of_others = 1
            assert second.state().is_stalled and not first.state().is_stalled
            await whole(engine)
            assert {number for _, views in router_of(engine).seen for number, _ in views} == {0}

    asyncio.run(main())


def test_an_engine_that_dies_takes_its_requests_along_and_no_others() -> None:
    async def main() -> None:
        async with running(in_process=False, options={"delay_s": 0.005}) as engine:
            tasks = [asyncio.create_task(whole(engine, max_tokens=60)) for _ in range(10)]
            await asyncio.sleep(0.05)
            homes = {key: home.number for key, home in engine._homes.items()}
            _, host = engine.hosts
            assert isinstance(host, EngineProcess)
            os.kill(host.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            async with asyncio.timeout(5):
                done = await asyncio.gather(*tasks, return_exceptions=True)
            for task_number, answer in enumerate(done):
                if homes[task_number] == 1:
                    assert isinstance(answer, EngineDead) and "signal 9" in answer.what
                else:
                    assert isinstance(answer, list) and len(answer[0]) == 60
            assert Counter(homes.values()) == {0: 5, 1: 5}
            assert time.monotonic() - killed_s < 2
            assert engine.is_alive and engine.death_reason is None
            first, second = engine.states()
            assert first.reason is None and "signal 9" in str(second.reason)
            assert router_of(engine).forgotten == [1]
            assert ledger_of(engine).steps[FIRST + 1].num_running == 0
            for _ in range(3):
                assert len((await whole(engine, max_tokens=2))[0]) == 2
            await engine.reset_prefix_cache()
            last, _ = engine.hosts
            assert isinstance(last, EngineProcess)
            os.kill(last.pid, signal.SIGKILL)
            async with asyncio.timeout(2):
                while engine.is_alive:
                    await asyncio.sleep(0.01)
            assert f"engine {FIRST}: " in str(engine.death_reason)
            with pytest.raises(EngineDead):
                await whole(engine)

    asyncio.run(main())


def test_an_engine_that_hangs_is_given_up_and_ended() -> None:
    async def main() -> None:
        changes: dict[str, Any] = {"options": {"delay_s": 0.01}, "step_timeout_s": 0.3}
        async with running(in_process=False, **changes) as engine:
            hanging, _ = engine.hosts
            assert isinstance(hanging, EngineProcess)
            process = psutil.Process(hanging.pid)
            params = SamplingParams(max_tokens=250)
            async with (
                aclosing(engine.generate("x", params, "a")) as one,
                aclosing(engine.generate("x", params, "b")) as two,
            ):
                await anext(one)
                await anext(two)
                for connection in connections_of(engine):  # as if this process had been stopped
                    grow_older(connection, heard_s=5, busy_s=5)
                    connection.note_pause(5.0)
                    connection.check_step()
                assert all(connection.is_alive for connection in connections_of(engine))
                process.suspend()
                ended = await asyncio.gather(_rest(one), _rest(two), return_exceptions=True)
                dead = [error for error in ended if isinstance(error, EngineDead)]
                assert len(dead) == 1 and "--engine-step-timeout is 0.3 s" in dead[0].what
            async with asyncio.timeout(3):
                while process.is_running():
                    await asyncio.sleep(0.02)
            assert engine.is_alive

    async def _rest(stream: Any) -> int:
        return len([output async for output in stream])

    asyncio.run(main())


def test_engines_that_cannot_start_leave_nothing() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="broken"):
            await AsyncEngine.start(spec_of(options={"start_error": "it is broken"}))

    before = set(psutil.Process().children())
    asyncio.run(main())
    assert set(psutil.Process().children()) <= before
