"""AsyncEngine: streams, aborts, death, draining; in a thread and over a process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.host import EngineProcess
from dovetail.errors import (
    BrokenPlugin,
    ConfigError,
    EngineDead,
    Overloaded,
    RequestError,
    RequestFault,
)
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail_testing.fakes.engine import fake_spec
from support.inside import connections_of, loggers_of, num_open


@asynccontextmanager
async def running(*, in_process: bool = True, **changes: Any) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(fake_spec(**changes), in_process=in_process)
    try:
        yield engine
    finally:
        await engine.shutdown()


async def whole(
    engine: AsyncEngine,
    prompt: str | Sequence[int] = "prompt",
    request_id: str = "r",
    **fields: Any,
) -> tuple[str, str | None]:
    """Return the text and the finish reason of one completion."""
    params = SamplingParams(**{"max_tokens": 10, "seed": 1} | fields)
    text, reason = "", None
    async for output in engine.generate(prompt, params, request_id):
        for delta in output.deltas:
            text += delta.text
            reason = delta.finish_reason
        assert output.is_finished == (reason is not None)
    return text, reason


async def settled(engine: AsyncEngine) -> None:
    """Wait until the engine has nothing running and nothing waiting."""
    async with asyncio.timeout(2):
        while engine.load() != (0, 0):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("async_steps", [True, False])
def test_concurrent_requests_equal_each_alone(in_process: bool, async_steps: bool) -> None:
    async def main() -> None:
        async with running(in_process=in_process, async_steps=async_steps) as engine:
            jobs = [
                {"prompt": "p" * (i + 1), "seed": i, "max_tokens": 5 + i % 9} for i in range(32)
            ]
            together = await asyncio.gather(*(whole(engine, **job) for job in jobs))
            for job, got in list(zip(jobs, together, strict=True))[::5]:
                assert await whole(engine, **job) == got
            await settled(engine)

    asyncio.run(main())


def test_deltas_come_one_by_one_and_merge_for_a_slow_reader() -> None:
    async def main() -> None:
        async with running(options={"script": "abcdefgh", "delay_s": 0.005}) as engine:
            outputs = [o async for o in engine.generate("x", SamplingParams(), "fast")]
            assert len(outputs) > 4
            slow = engine.generate("x", SamplingParams(), "slow")
            first = await anext(slow)
            await asyncio.sleep(0.2)
            rest = [o async for o in slow]
            assert len(rest) == 1
            text = first.deltas[0].text + rest[0].deltas[0].text
            assert text == "abcdefgh" == "".join(o.deltas[0].text for o in outputs)

    asyncio.run(main())


def test_n_completions_arrive_by_index() -> None:
    async def main() -> None:
        async with running() as engine:
            texts = ["", "", ""]
            params = SamplingParams(n=3, seed=5, max_tokens=6)
            async for output in engine.generate("x", params, "r"):
                for delta in output.deltas:
                    texts[delta.index] += delta.text
            assert [len(text) for text in texts] == [6, 6, 6]
            assert len(set(texts)) == 3
            assert (await whole(engine, "x", seed=5, max_tokens=6))[0] == texts[0]

    asyncio.run(main())


def test_bad_requests_and_faults_touch_nobody_else() -> None:
    async def main() -> None:
        # In a process: only messages that are encoded can hold a number too large for msgpack.
        async with running(in_process=False) as engine:
            other = asyncio.create_task(whole(engine, "other", max_tokens=100))
            with pytest.raises(RequestError):
                await whole(engine, "")
            with pytest.raises(RequestFault, match="NaN"):
                await whole(engine, "FAULT")
            with pytest.raises(RequestFault, match="666"):
                async for _ in engine.generate("x", SamplingParams(), "r", priority=666):
                    pass
            with pytest.raises(RequestError, match="too large"):
                async for _ in engine.generate("x", SamplingParams(), "r", priority=1 << 70):
                    pass
            text, reason = await other
            assert (len(text), reason) == (100, "length")
            await settled(engine)

    asyncio.run(main())


@pytest.mark.parametrize("in_process", [True, False])
def test_closing_cancelling_and_aborting_free_everything(in_process: bool) -> None:
    async def main() -> None:
        changes: dict[str, Any] = {"options": {"delay_s": 0.002}, "max_rows": 2}
        async with running(in_process=in_process, **changes) as engine:
            params = SamplingParams(max_tokens=200)
            async with aclosing(engine.generate("x", params, "closed")) as stream:
                await anext(stream)
            tasks = [
                asyncio.create_task(whole(engine, "y", f"t{i}", max_tokens=200)) for i in range(6)
            ]
            aborted = asyncio.create_task(whole(engine, "z", "aborted", max_tokens=200))
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await engine.abort("aborted")
            async with asyncio.timeout(2):
                assert (await aborted)[1] == "abort"
            await asyncio.gather(*tasks, return_exceptions=True)
            await settled(engine)
            assert num_open(engine) == len(connections_of(engine)[0].output) == 0

    asyncio.run(main())


def test_two_requests_may_share_an_id() -> None:
    async def main() -> None:
        async with running() as engine:
            got = await asyncio.gather(*(whole(engine, "x", "same", seed=i) for i in range(2)))
            assert got[0] != got[1]

    asyncio.run(main())


def test_a_long_prompt_is_tokenized_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running(max_model_tokens=5000, num_blocks=3000) as engine:
            encode = engine.tokenizer.encode
            monkeypatch.setattr(
                engine.tokenizer, "encode", lambda *a, **k: (time.sleep(0.3), encode(*a, **k))[1]
            )
            task = asyncio.create_task(whole(engine, "x" * 4000))
            started_s = time.monotonic()
            await asyncio.sleep(0.01)
            assert time.monotonic() - started_s < 0.2, "tokenizing blocked the event loop"
            assert (await task)[1] == "length"

    asyncio.run(main())


def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    async def main() -> None:
        async with running(options={"delay_s": 0.005}) as engine:
            task = asyncio.create_task(whole(engine, max_tokens=40))
            await asyncio.sleep(0.02)
            assert not await engine.drain(0.01)
            with pytest.raises(Overloaded):
                await whole(engine)
            assert await engine.drain(5)
            assert (await task)[1] == "length"

    asyncio.run(main())


@pytest.mark.parametrize("in_process", [True, False])
def test_a_dead_worker_ends_every_request_at_once(in_process: bool) -> None:
    async def main() -> None:
        async with running(in_process=in_process, options={"dies_at_step": 5}) as engine:
            started_s = time.monotonic()
            got = await asyncio.gather(
                *(whole(engine, max_tokens=50) for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(error, EngineDead) for error in got)
            assert time.monotonic() - started_s < 1
            assert not engine.is_alive
            assert engine.death_reason is not None and "fake worker" in engine.death_reason
            with pytest.raises(EngineDead):
                await whole(engine)

    asyncio.run(main())


def test_a_killed_process_is_noticed_within_a_second() -> None:
    async def main() -> None:
        async with running(in_process=False, options={"delay_s": 0.01}) as engine:
            task = asyncio.create_task(whole(engine, max_tokens=200))
            await asyncio.sleep(0.1)
            (host,) = engine.hosts
            assert isinstance(host, EngineProcess)
            os.kill(host.pid, signal.SIGKILL)
            started_s = time.monotonic()
            with pytest.raises(EngineDead, match="signal 9"):
                await task
            assert time.monotonic() - started_s < 1
            assert not engine.is_alive

    asyncio.run(main())


@pytest.mark.parametrize("in_process", [True, False])
def test_start_up_errors_come_back_as_they_were_raised(in_process: bool) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError) as caught:
            spec = fake_spec(options={"start_error": "no weights here."})
            await AsyncEngine.start(spec, in_process=in_process)
        error = caught.value
        assert (error.what, error.where, error.fix) == ("no weights here.", "--fake", "do not.")
        with pytest.raises(BrokenPlugin, match=r"FakeExecutor.* raised RuntimeError: boom"):
            await AsyncEngine.start(
                fake_spec(options={"start_crash": "boom"}), in_process=in_process
            )
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            await AsyncEngine.start(fake_spec(tokenizer_path="missing"), in_process=in_process)

    asyncio.run(main())


def test_signs_of_life_and_phases() -> None:
    async def main() -> None:
        async with running(in_process=False) as engine:
            assert [phase.name for phase in engine.phases] == [
                "load model",
                "create KV cache and warm up",
            ]
            assert engine.heartbeat_age_s() < 1
            (host,) = engine.hosts
            assert isinstance(host, EngineProcess)
            os.kill(host.pid, signal.SIGSTOP)
            await asyncio.sleep(1.3)
            assert engine.heartbeat_age_s() > 1
            os.kill(host.pid, signal.SIGCONT)
            async with asyncio.timeout(3):
                while engine.heartbeat_age_s() > 1:
                    await asyncio.sleep(0.02)

    asyncio.run(main())


class Ledger(StatLogger):
    """Keeps what it is told; the last one made is `Ledger.last`."""

    info = Info(summary="test logger")
    last: Ledger

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []
        type(self).last = self

    def step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


def test_stat_loggers_live_in_the_api_process() -> None:
    async def main() -> None:
        async with running(
            in_process=False,
            stat_loggers=(Selection(kind="stat_logger", name="l", target=f"{__file__}:Ledger"),),
        ) as engine:
            await asyncio.gather(*(whole(engine, max_tokens=20, seed=i) for i in range(4)))
            stream = engine.generate("x", SamplingParams(max_tokens=200), "gone")
            await anext(stream)
            await stream.aclose()
            await settled(engine)
            (logger,) = loggers_of(engine)
            assert sum(stats.prompt_tokens for stats in logger.steps) == 4 * 6 + 1
            assert sum(stats.generated_tokens for stats in logger.steps) >= 81
            reasons = [stats.finish_reason for stats in logger.requests]
            assert reasons == ["length"] * 4 + ["abort"]
            finished = logger.requests[0]
            assert (finished.generated_tokens, len(finished.inter_token_s)) == (20, 19)
            assert 0 <= finished.queue_s <= finished.ttft_s <= finished.e2e_s

    asyncio.run(main())
