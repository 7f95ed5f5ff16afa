"""Calls: one way to ask an engine for anything beside tokens, and what a new operation takes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest

from dovetail import errors
from dovetail.engine import loop
from dovetail.engine.client import operations
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.core import EngineCore
from dovetail.engine.faults import error_of, fault_of
from dovetail.engine.loop import EngineLoop
from dovetail.engine.messages import (
    AdapterList,
    AnyOperation,
    Call,
    CallWorkers,
    FromEngine,
    Leave,
    ListAdapters,
    LoadAdapter,
    Operation,
    Pause,
    Ping,
    ResetPrefixCache,
    Resume,
    Return,
    Sleep,
    ToEngine,
    UnloadAdapter,
    WakeUp,
)
from dovetail.errors import (
    DovetailError,
    EngineAsleep,
    EngineDead,
    NotFound,
    Overloaded,
    RequestError,
)
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.executor import WorkerCall
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of

OPERATIONS: dict[type, Operation[Any]] = {
    type(operation): operation
    for operation in (
        Ping(),
        ResetPrefixCache(),
        Sleep(level=2, waits=True),
        WakeUp(("weights",)),
        Pause(mode="wait", drops=True),
        Resume(),
        Leave(engine=1),
        CallWorkers(WorkerCall(method="m", args=(1, [b"2"]), kwargs={"a": None}, timeout_s=3.0)),
        LoadAdapter(source=AdapterSource(name="a", path="/a", base="b"), replaces=True),
        UnloadAdapter("a"),
        ListAdapters(),
    )
}


@asynccontextmanager
async def running(*, in_process: bool = True, **options: Any) -> AsyncIterator[AsyncEngine]:
    spec = msgspec.structs.replace(fake_spec(options=options), can_sleep=True)
    engine = await AsyncEngine.start(spec, in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def within_limit() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(within_limit())


async def generate(engine: AsyncEngine, num_tokens: int) -> None:
    params = SamplingParams(max_tokens=num_tokens)
    async for _ in engine.generate("abc", params, "r"):
        continue


# ---- what travels


@pytest.mark.parametrize("kind", get_args(AnyOperation), ids=lambda kind: str(kind.__name__))
def test_every_operation_crosses_whole(kind: type) -> None:
    call = Call(1, OPERATIONS[kind])  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=ToEngine) == call


def test_every_operation_is_performed_by_a_part() -> None:
    core = EngineCore(msgspec.structs.replace(fake_spec(), can_sleep=True))
    for operation in (*OPERATIONS.values(), Resume(), Sleep(level=2)):
        if isinstance(operation, Ping | ResetPrefixCache):
            continue  # the loop's
        with contextlib.suppress(RequestError):
            core.perform(operation)  # type: ignore[arg-type]
    core.poll()
    assert core.condition().asleep and core.condition().repeats == (Sleep(level=1),)


@pytest.mark.parametrize(
    "error",
    [
        DovetailError("a", where="b", fix="c"),
        errors.ConfigError("a", where="--b"),
        RequestError("a", where="b", fix="c", code="d", status=409),
        NotFound("a"),
        EngineAsleep("a", code="engine_asleep"),
        Overloaded("a", retry_after_s=7.0, status=429),
        errors.RequestFault("a"),
        EngineDead("a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_it_was_raised(error: DovetailError) -> None:
    message = Return(1, fault=fault_of(error))
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromEngine)
    assert isinstance(heard, Return) and heard.fault is not None
    again = error_of(heard.fault)
    assert type(again) is type(error)
    assert str(again) == str(error)
    for name in ("what", "where", "fix", "code", "status", "retry_after_s"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_an_error_of_a_plugin_arrives_as_what_it_derives_from() -> None:
    class Picky(NotFound):
        pass

    assert type(error_of(fault_of(Picky("a")))) is NotFound


# ---- what callers see


@pytest.mark.parametrize("in_process", [True, False])
def test_every_caller_gets_its_own_result(in_process: bool) -> None:
    async def main() -> None:
        async with running(in_process=in_process) as engine:
            got = await asyncio.gather(
                engine.call(ListAdapters()),
                engine.call(WakeUp(("pillow",))),
                engine.call(Ping()),
                engine.call(ResetPrefixCache()),
                return_exceptions=True,
            )
            assert got[0] == AdapterList(())
            assert isinstance(got[1], RequestError) and got[1].where == "tags"
            assert got[2].num_running == 0  # type: ignore[union-attr]
            assert got[3] is None

    run(main())


def test_calls_are_done_in_order() -> None:
    async def main() -> None:
        async with running() as engine:
            calls = [engine.sleep(), engine.is_sleeping(), engine.wake_up(), engine.is_sleeping()]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            # Sleep comes when all messages have been heard; waking up before that prevents it.
            assert isinstance(outcomes[0], RequestError) and outcomes[0].status == 409
            assert outcomes[1:] == [False, None, False]
            assert engine.asleep == ()

    run(main())


def test_methods_of_workers_are_called_between_the_steps_of_requests() -> None:
    async def main() -> None:
        async with running(delay_s=0.01) as engine:
            request = asyncio.create_task(generate(engine, 20))
            await asyncio.sleep(0.05)
            call = WorkerCall(method="m", args=(1,), kwargs={"more": [2]}, timeout_s=5.0)
            expected = [{"rank": rank, "args": [1], "more": [2]} for rank in range(2)]
            assert await engine.collective_rpc(call) == expected
            with pytest.raises(RequestError, match="rank 1: fail raised") as caught:
                await engine.collective_rpc(WorkerCall(method="fail"))
            assert caught.value.status == 500
            assert not request.done()
            await request

    run(main())


def test_an_engine_that_hangs_in_a_method_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "ANSWER_WAIT_S", 0.05)

    async def main() -> None:
        async with running() as engine:
            with pytest.raises(Overloaded, match="no answer within"):
                await engine.collective_rpc(WorkerCall(method="nap", args=(0.3,), timeout_s=0.05))
            assert len(await engine.collective_rpc(WorkerCall(method="m"))) == 2

    run(main())


def test_callers_that_left_leave_nothing_behind() -> None:
    async def main() -> None:
        async with running(delay_s=0.05) as engine:
            request = asyncio.create_task(generate(engine, 20))
            await asyncio.sleep(0.1)
            caller = asyncio.create_task(engine.sleep(waits=True))
            await asyncio.sleep(0.05)
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
            with pytest.raises(Overloaded, match=r"within 0\.01 s"):
                await engine.call(Sleep(level=1, waits=True), 0.01)
            assert len(connections_of(engine)[0].calls) <= 1  # the ping
            await request
            while not await engine.is_sleeping():  # it was asked to, whoever has left
                await asyncio.sleep(0.01)

    run(main())


def test_a_client_that_left_is_not_waited_for() -> None:
    async def main() -> None:
        async with running(in_process=False, delay_s=0.02) as first:
            second = await AsyncEngine.attach(first.addresses_for(0), first.spec)
            request = asyncio.create_task(generate(first, 20))
            await asyncio.sleep(0.1)
            caller = asyncio.create_task(second.sleep(waits=True))
            await asyncio.sleep(0.05)
            await second.shutdown()
            with pytest.raises(EngineDead):
                await caller
            await request
            while not first.asleep:
                await asyncio.sleep(0.01)
            await first.wake_up()

    run(main())


@pytest.mark.parametrize("in_process", [True, False])
def test_calls_end_with_the_engine(in_process: bool) -> None:
    async def main() -> None:
        async with running(in_process=in_process, delay_s=0.05, dies_at_step=4) as engine:
            request = asyncio.create_task(generate(engine, 20))
            await asyncio.sleep(0.1)
            with pytest.raises(EngineDead):
                await engine.sleep(waits=True)
            with pytest.raises(EngineDead):
                await request
            with pytest.raises(EngineDead):
                await engine.call(Ping())
            assert len(connections_of(engine)[0].calls) == 0

    run(main())


# ---- a new operation: a struct and an arm


class CountThreads(Operation[int], frozen=True, tag="count_threads"):
    """Count the threads whose name starts so; without a name there is nothing to count."""

    prefix: str


class Later(Operation[str], frozen=True, tag="later"):
    """Answer from another thread, after a while."""

    text: str
    delay_s: float


class LargerLoop(EngineLoop):
    """An engine that can be called to do two things more."""

    def _perform(self, operation: Any) -> Any:
        match operation:
            case CountThreads(""):
                raise RequestError("there is no prefix.", where="prefix")
            case CountThreads(prefix):
                return sum(t.name.startswith(prefix) for t in threading.enumerate())
            case Later(text, delay_s):
                done: Future[str] = Future()
                threading.Timer(delay_s, done.set_result, (text,)).start()
                return done
            case _:
                return super()._perform(operation)


def test_another_operation_is_a_struct_and_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "EngineLoop", LargerLoop)

    async def main() -> None:
        async with running() as engine:
            assert await engine.call(CountThreads("engine")) == 1
            with pytest.raises(RequestError, match="no prefix"):
                await engine.call(CountThreads(""))
            late = asyncio.create_task(engine.call(Later("late", 0.2)))
            assert await engine.call(Later("early", 0.0)) == "early"
            assert not late.done()
            assert await late == "late"
            assert await engine.call(ListAdapters()) == AdapterList(())

    run(main())
