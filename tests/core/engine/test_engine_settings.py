"""Settings of the engine as a process: its socket, its processors, how long it may be silent."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import uvloop

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.engine.core import EngineCore
from dovetail.engine.ipc import transport
from dovetail.errors import ConfigError, EngineDead, Overloaded
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of, grow_older, pool_of


def spec_with(*, options: dict[str, Any] | None = None, **changes: Any) -> EngineSpec:
    return msgspec.structs.replace(fake_spec(options=options), **changes)


@asynccontextmanager
async def running(spec: EngineSpec, *, in_process: bool = True) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(spec, in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()


async def finish(engine: AsyncEngine, num_tokens: int) -> None:
    async for _ in engine.generate("x", SamplingParams(max_tokens=num_tokens), "r"):
        continue


@pytest.mark.slow
def test_a_step_that_takes_too_long_ends_the_engine() -> None:
    async def main() -> None:
        spec = spec_with(options={"delay_s": 3.0}, step_timeout_s=0.5)
        async with running(spec, in_process=False) as engine:
            started_s = time.monotonic()
            with pytest.raises(EngineDead, match=r"--engine-step-timeout is 0\.5 s"):
                await finish(engine, 3)
            assert 0.5 < time.monotonic() - started_s < 2.9
            assert not engine.is_alive
            (host,) = engine.hosts
            assert isinstance(host, EngineProcess)
            process = psutil.Process(host.pid)
        assert not process.is_running()

    asyncio.run(main())


@pytest.mark.slow
def test_an_idle_engine_and_one_in_many_short_steps_live_on() -> None:
    async def main() -> None:
        spec = spec_with(options={"delay_s": 0.02}, step_timeout_s=0.5)
        async with running(spec) as engine:
            await asyncio.sleep(1.1)
            await finish(engine, 60)
            assert engine.is_alive

    asyncio.run(main())


def test_a_step_is_timed_from_when_work_began() -> None:
    async def main() -> None:
        async with running(spec_with(options={"delay_s": 0.02}, step_timeout_s=5.0)) as engine:
            task = asyncio.create_task(finish(engine, 5))
            while not engine.load()[1]:
                await asyncio.sleep(0)
            # As if it had been idle, and not been asked, for so long. Nothing is heard meanwhile.
            grow_older(connections_of(engine)[0], heard_s=60)
            assert engine.heartbeat_age_s() > 59
            connections_of(engine)[0].check_step()
            assert engine.is_alive
            grow_older(connections_of(engine)[0], busy_s=60)
            connections_of(engine)[0].check_step()
            assert not engine.is_alive
            with pytest.raises(EngineDead):
                await task

    asyncio.run(main())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_held_up_event_loop_is_not_the_engines_fault(loop: Any) -> None:
    spec = spec_with(options={"delay_s": 0.01}, step_timeout_s=0.5)

    async def main() -> None:
        async with running(spec, in_process=False) as engine:
            task = asyncio.create_task(finish(engine, 150))
            await asyncio.sleep(0.1)
            time.sleep(1.5)  # not asyncio.sleep: the loop must not run
            await asyncio.sleep(0.1)
            assert engine.is_alive
            await task

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("in_process", [True, False])
def test_a_reset_is_answered_in_order(in_process: bool) -> None:
    async def main() -> None:
        async with running(spec_with(), in_process=in_process) as engine:
            await asyncio.gather(*(engine.reset_prefix_cache() for _ in range(3)))
            await finish(engine, 2)
        with pytest.raises(Overloaded):
            await engine.reset_prefix_cache()

    asyncio.run(main())


def test_a_reset_does_not_wait_for_ever_and_late_answers_go_to_nobody() -> None:
    async def main() -> None:
        async with running(spec_with(options={"delay_s": 0.3}, reply_timeout_s=0.05)) as engine:
            task = asyncio.create_task(finish(engine, 2))
            await asyncio.sleep(0.1)
            with pytest.raises(Overloaded, match=r"within 0\.05 s"):
                await engine.reset_prefix_cache()
            await task
            await engine.reset_prefix_cache()

    asyncio.run(main())


def test_a_reset_empties_the_index_of_prefixes() -> None:
    core = EngineCore(spec_with())
    pool_of(core.cache).publish(0, pool_of(core.cache).take(1)[0], b"hash")
    assert pool_of(core.cache).find(0, b"hash") != 0
    core.reset_prefix_cache()
    assert pool_of(core.cache).find(0, b"hash") == 0
    core.shutdown()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder whose path leaves room for a socket's, as pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Path(folder).resolve()


def test_the_socket_lies_where_it_is_wanted(short_path: Path) -> None:
    async def main() -> None:
        async with running(spec_with(socket_dir=str(short_path)), in_process=False) as engine:
            assert [path.name for path in short_path.glob("dovetail-*/*")] == ["engine.sock"]
            await finish(engine, 2)

    asyncio.run(main())
    assert list(short_path.iterdir()) == []


@pytest.mark.parametrize(("folder", "cause"), [("no/such", "no socket"), ("x" * 120, "too long")])
def test_a_folder_that_cannot_hold_a_socket(folder: str, cause: str, short_path: Path) -> None:
    with pytest.raises(ConfigError, match=cause) as caught:
        transport.make_socket_folder(str(short_path / folder))
    assert caught.value.where == "--socket-dir"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps processes to processors")
@pytest.mark.parametrize("in_process", [True, False])
def test_the_engine_keeps_to_its_processors(in_process: bool) -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("this process may use one processor alone")
    wanted = max(usable)

    async def main() -> None:
        spec = fake_spec()
        spec = msgspec.structs.replace(
            spec, run=msgspec.structs.replace(spec.run, processors=(wanted,))
        )
        async with running(spec, in_process=in_process) as engine:
            if in_process:
                affinities = [os.sched_getaffinity(t.id) for t in psutil.Process().threads()]
                assert {wanted} in affinities
            else:
                (host,) = engine.hosts
                assert isinstance(host, EngineProcess)
                assert os.sched_getaffinity(host.pid) == {wanted}
        assert os.sched_getaffinity(0) == usable

    asyncio.run(main())
