"""The engine process: it dies with its parent, idles quietly, and serves several API processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.engine.messages import Boot
from dovetail.errors import EngineDead
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of
from support.orphans import own_children
from support.wake_ups import counts_wake_ups, wake_ups

ROOT = Path(__file__).resolve().parents[4]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("core", "kernels", "plugins"))

PARENT = """
import asyncio, sys
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.fakes.engine import fake_spec

async def main(stage):
    options = {"delay_s": 0.01, "start_delay_s": 60.0 if stage in ("begun", "loading") else 0.0}
    spec = fake_spec(options=options)
    if stage in ("begun", "loading"):
        host = EngineProcess(spec)
        print(host.pid, host.address, flush=True)
        await asyncio.sleep(60)
    engine = await AsyncEngine.start(spec)
    print(engine.hosts[0].pid, engine.addresses_for(0)[0], flush=True)
    if stage == "busy":
        async for _ in engine.generate("x", SamplingParams(max_tokens=200), "r"):
            pass
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


def pid_of(engine: AsyncEngine) -> int:
    (host,) = engine.hosts
    assert isinstance(host, EngineProcess)
    return host.pid


async def text_of(engine: AsyncEngine, max_tokens: int = 8, seed: int = 1) -> str:
    params = SamplingParams(max_tokens=max_tokens, seed=seed)
    text = ""
    async for output in engine.generate("x", params, "r"):
        text += "".join(delta.text for delta in output.deltas)
    return text


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["begun", "loading", "idle", "busy"])
def test_no_child_and_no_socket_outlive_a_killed_parent(stage: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), stage],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    with parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        child = psutil.Process(int(pid))
        time.sleep(0.0 if stage == "begun" else 0.4)
        assert child.is_running()
        parent.kill()
        child.wait(2)
    time.sleep(0.05)
    assert not Path(address.decode().removeprefix("ipc://")).parent.exists()


def test_shutdown_leaves_nothing() -> None:
    async def main() -> tuple[int, str]:
        engine = await AsyncEngine.start(fake_spec())
        pid, (address,) = pid_of(engine), engine.addresses_for(0)
        await engine.shutdown()
        await engine.shutdown()
        return pid, address

    started_s = time.monotonic()
    pid, address = asyncio.run(main())
    assert not psutil.pid_exists(pid)
    assert not Path(address.removeprefix("ipc://")).parent.exists()
    assert time.monotonic() - started_s < 5


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        before = set(psutil.Process().children())
        task = asyncio.create_task(AsyncEngine.start(fake_spec(options={"start_delay_s": 60.0})))
        await asyncio.sleep(0.3)
        assert set(psutil.Process().children()) - before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(psutil.Process().children()) == before

    started_s = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started_s < 3


def test_a_child_that_exits_while_starting_is_noticed() -> None:
    async def main() -> None:
        task = asyncio.create_task(AsyncEngine.start(fake_spec(options={"start_delay_s": 60.0})))
        await asyncio.sleep(0.3)
        (child,) = own_children()
        child.kill()
        with pytest.raises(EngineDead, match="signal 9"):
            async with asyncio.timeout(2):
                await task

    asyncio.run(main())


def test_an_engine_that_exits_by_itself_is_noticed() -> None:
    async def main() -> None:
        engine = await AsyncEngine.start(fake_spec(options={"exits_at_step": 3}))
        with pytest.raises(EngineDead, match="status 9"):
            async with asyncio.timeout(1):
                await text_of(engine)
        await engine.shutdown()

    asyncio.run(main())


def test_signals_for_the_whole_group_are_left_to_the_parent() -> None:
    async def main() -> None:
        engine = await AsyncEngine.start(fake_spec())
        os.kill(pid_of(engine), signal.SIGINT)
        os.kill(pid_of(engine), signal.SIGTERM)
        assert len(await text_of(engine)) == 8
        await engine.shutdown()

    asyncio.run(main())


@pytest.mark.slow
@counts_wake_ups
def test_an_idle_engine_sleeps() -> None:
    async def main() -> float:
        engine = await AsyncEngine.start(fake_spec())
        await text_of(engine)
        await asyncio.sleep(1.2)  # past the check that follows work
        pids = [pid_of(engine), os.getpid()]
        before = sum(map(wake_ups, pids))
        await asyncio.sleep(4)
        after = sum(map(wake_ups, pids))
        assert len(await text_of(engine)) == 8
        await engine.shutdown()
        return (after - before) / 4

    # A ping, its answer and a tick a second, each with its socket's thread: about seven in all.
    assert asyncio.run(main()) <= 10


def test_the_child_imports_what_the_parent_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_plugin.py").write_text(
        textwrap.dedent(
            """
            from dovetail_testing.fakes.engine import FakeExecutor

            class Mine(FakeExecutor):
                def _next(self, row, position):
                    print("a stray line on standard output")
                    return ord("!")
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = fake_spec()
    executor = msgspec.structs.replace(spec.executor, target="my_plugin:Mine")

    async def main() -> None:
        engine = await AsyncEngine.start(msgspec.structs.replace(spec, executor=executor))
        assert await text_of(engine) == "!" * 8
        await engine.shutdown()

    asyncio.run(main())


def test_several_api_processes_share_an_engine() -> None:
    async def main() -> None:
        spec = fake_spec(options={"delay_s": 0.002})
        engine = await AsyncEngine.start(spec)
        others = [await AsyncEngine.attach(engine.addresses_for(0), spec) for _ in range(2)]
        everyone = [engine, *others]
        alone = [await text_of(engine, 20, seed) for seed in range(6)]
        together = await asyncio.gather(
            *(text_of(everyone[seed % 3], 20, seed) for seed in range(6))
        )
        assert together == alone
        await others[0].shutdown()  # leaves; the engine stays
        assert await text_of(others[1], 20, 3) == alone[3]
        os.kill(pid_of(engine), signal.SIGKILL)
        with pytest.raises(EngineDead):
            async with asyncio.timeout(1):
                await text_of(others[1])
        assert not others[1].is_alive
        await others[1].shutdown()
        await engine.shutdown()

    asyncio.run(main())


ATTACHED = """
import asyncio, sys
import msgspec
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_testing.fakes.engine import fake_spec

async def main(address):
    engine = await AsyncEngine.attach([address], fake_spec())
    params = SamplingParams(max_tokens=250)
    streams = [engine.generate("x", params, "r") for _ in range(5)]
    await anext(streams[0])
    for stream in streams[1:]:
        asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.05)
    print("running", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


def test_an_api_process_that_dies_takes_its_requests_along(tmp_path: Path) -> None:
    script = tmp_path / "attached.py"
    script.write_text(ATTACHED)

    async def main() -> None:
        engine = await AsyncEngine.start(fake_spec(options={"delay_s": 0.02}, max_rows=2))
        with subprocess.Popen(
            [sys.executable, str(script), *engine.addresses_for(0)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": PATHS},
        ) as other:
            assert other.stdout is not None
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, other.stdout.readline) == b"running\n"
            other.kill()
        async with asyncio.timeout(2):
            while engine.load() != (0, 0) or connections_of(engine)[0].num_steps == 0:
                await asyncio.sleep(0.01)
        assert len(await text_of(engine)) == 8
        await engine.shutdown()

    asyncio.run(main())


def test_a_boot_message_is_pure_data() -> None:
    boot = Boot(spec=fake_spec(options={"script": "ü"}), addresses=("ipc:///x",))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(boot), type=Boot) == boot
