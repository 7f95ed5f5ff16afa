"""What stat loggers are told of requests: counts as clients count, times in order, who asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec import structs

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import EngineDead, RequestError, RequestFault
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats, TokenStats
from dovetail.llm.llm import LLM
from dovetail.server.app import build_app
from dovetail_testing.fakes.engine import fake_spec
from support.inside import engine_of, loggers_of
from support.serving import built_in_apis


class Ledger(StatLogger):
    info = Info(summary="keeps all it is told")
    capabilities = frozenset({"offline"})

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.generated_tokens = self.prompt_tokens = self.num_closed = 0
        self.requests: list[RequestStats] = []

    def step(self, stats: StepStats) -> None:
        pass

    def tokens(self, stats: TokenStats) -> None:
        self.generated_tokens += stats.generated_tokens
        self.prompt_tokens += stats.prompt_tokens

    def request(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def close(self) -> None:
        self.num_closed += 1


LOGGERS = (Selection(kind="stat_logger", name="ledger", target=f"{__file__}:Ledger"),)


@asynccontextmanager
async def running(spec: EngineSpec) -> AsyncIterator[tuple[AsyncEngine, Any]]:
    engine = await AsyncEngine.start(spec, in_process=True)
    try:
        yield engine, loggers_of(engine)[0]
    finally:
        await engine.shutdown()


async def whole(engine: AsyncEngine, prompt: str = "prompt", **fields: Any) -> int:
    """Return the tokens that the client of one request counts."""
    count = 0
    async for output in engine.generate(prompt, SamplingParams(seed=1, **fields), "r"):
        count += sum(len(delta.token_ids) for delta in output.deltas)
    return count


def test_tokens_are_counted_as_the_client_counts_them() -> None:
    async def main() -> None:
        async with running(fake_spec(stat_loggers=LOGGERS)) as (engine, ledger):
            seen = [
                await whole(engine, max_tokens=20),
                await whole(engine, max_tokens=6, n=3),
                await whole(engine, max_tokens=30, stop=tuple("aeiou")),
            ]
            assert ledger.generated_tokens == sum(seen)
            assert ledger.prompt_tokens == 3 * len("prompt")  # once a request, whatever its n
            assert [s.generated_tokens for s in ledger.requests] == seen
            # One gap for each token but the first of each completion.
            assert [len(s.inter_token_s) for s in ledger.requests] == [19, 15, seen[2] - 1]
            assert ledger.requests[1].longest_tokens == 6
            assert ledger.requests[1].finish_reasons == ("length",) * 3

    asyncio.run(main())


def test_times_stand_in_order() -> None:
    async def main() -> None:
        spec = structs.replace(
            fake_spec(stat_loggers=LOGGERS, options={"delay_s": 0.002}), times_steps=True
        )
        async with running(spec) as (engine, ledger):
            await whole(engine, max_tokens=10)
            (stats,) = ledger.requests
            times = stats.times
            assert 0 < times.arrival_s <= times.scheduled_s < times.first_token_s
            assert times.first_token_s < times.last_token_s <= times.ended_s
            assert stats.queue_s + stats.prefill_s + stats.decode_s <= stats.e2e_s
            assert 10 * 0.002 <= stats.execute_s <= stats.e2e_s

    asyncio.run(main())


def test_ends_have_their_reasons() -> None:
    async def main() -> None:
        spec = fake_spec(stat_loggers=LOGGERS, options={"delay_s": 0.002})
        async with running(spec) as (engine, ledger):
            with pytest.raises(RequestFault):
                await whole(engine, "FAULT")
            with pytest.raises(RequestError):
                await whole(engine, "")  # refused: it never was a request
            with pytest.raises(RequestError):
                await anext(engine.generate("x", SamplingParams(max_tokens=1 << 40), "big"))
            gone = engine.generate("x", SamplingParams(max_tokens=200), "gone")
            await anext(gone)
            await gone.aclose()
            cut = engine.generate("x", SamplingParams(max_tokens=200), "cut")
            await anext(cut)
            await engine.shutdown()
            with pytest.raises(EngineDead):
                while True:
                    await anext(cut)
            found = [(s.request_id, s.finish_reason) for s in ledger.requests]
            assert found == [("r", "error"), ("gone", "abort"), ("cut", "error")]
            assert "NaN" in ledger.requests[0].error
            assert "shut down" in ledger.requests[2].error
            assert ledger.num_closed == 1

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_the_callers_trace_comes_along(stream: bool) -> None:
    async def main() -> None:
        async with running(fake_spec(stat_loggers=LOGGERS)) as (engine, ledger):
            app = build_app(engine, FrontendConfig(), built_in_apis())
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                for number in range(2):
                    headers = {"traceparent": f"parent {number}", "tracestate": "a=b"}
                    body = {"prompt": "x", "max_tokens": 2, "stream": stream}
                    answer = await client.post("/v1/completions", json=body, headers=headers)
                    assert answer.status_code == 200
                await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            callers = [s.caller for s in ledger.requests]
            assert [c.traceparent for c in callers] == ["parent 0", "parent 1", ""]
            assert (callers[0].tracestate, callers[0].path) == ("a=b", "/v1/completions")

    asyncio.run(main())


def test_an_engine_without_a_server_tells_of_its_requests() -> None:
    with LLM.from_spec(fake_spec(stat_loggers=LOGGERS)) as llm:
        llm.generate(["a", "b FAULT"], SamplingParams(max_tokens=3), use_tqdm=False)
        ledger: Any = loggers_of(engine_of(llm))[0]
    assert sorted(s.finish_reason for s in ledger.requests) == ["error", "length"]
    assert ledger.num_closed == 1
