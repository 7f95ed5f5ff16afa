"""After a load, metrics equal what the clients counted; every request is a span and a JSON line.

One server, and several API processes before one engine; streams, whole answers, several
completions, stop strings, refusals and clients that leave.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.otlp_collector import Collector, attributes_of
from support.samples import sample_of
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
API_PROCESS = "dovetail.server.launch.api_process"
NUM_REQUESTS = sample_of(60, 12)
PREFIX = "The quick brown fox jumps over the lazy dog. " * 4


@dataclass
class Counted:
    """What the clients saw. `ended` is by trace: the reason, or "abort"."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    num_gaps: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    ended: dict[str, str] = field(default_factory=dict)

    def add(self, usage: dict[str, Any], reason: str, n: int, trace: str) -> None:
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        self.generated_tokens += usage["completion_tokens"]
        self.num_gaps += usage["completion_tokens"] - n
        self.reasons[reason] += 1
        self.ended[trace] = reason


def traced(trace: str) -> dict[str, str]:
    """Return the headers of a request that belongs to a trace."""
    return {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}


async def one(client: httpx.AsyncClient, number: int, counted: Counted) -> None:
    """Send one request of the mix and count what comes of it."""
    chance = random.Random(number)
    trace = secrets.token_hex(16)
    headers = traced(trace)
    # n completions that all end for the same reason: a metric has one reason per request.
    body: dict[str, Any] = {
        "prompt": PREFIX[: chance.randrange(20, len(PREFIX))], "ignore_eos": True,
        "max_tokens": chance.randrange(2, 24), "n": chance.choice([1, 1, 1, 2]),
    }  # fmt: skip
    match number % 6:
        case 0:
            body |= {"temperature": -1}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 400
            counted.refused += 1
        case 1:
            body |= {"stop": [" "], "n": 1, "max_tokens": 200}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            found = answer.json()
            counted.add(found["usage"], found["choices"][0]["finish_reason"], 1, trace)
        case 2:
            await leave(client, body | {"max_tokens": 2000, "n": 1}, headers)
            counted.ended[trace] = "abort"
        case 3 | 4:
            await stream(client, body, headers, counted, trace)
        case _:
            answer = await client.post("/v1/completions", json=body, headers=headers)
            found = answer.json()
            reason = found["choices"][0]["finish_reason"]
            counted.add(found["usage"], reason, body["n"], trace)


async def stream(
    client: httpx.AsyncClient, body: Any, headers: Any, counted: Counted, trace: str
) -> None:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    usage, reason = None, ""
    async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    reason = choice["finish_reason"] or reason
    assert usage is not None
    counted.add(usage, reason, body["n"], trace)


async def leave(client: httpx.AsyncClient, body: Any, headers: Any) -> None:
    asked = body | {"stream": True}
    async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                assert "choices" in json.loads(line[6:]), line
                return
    raise AssertionError("the answer ended before it could be left")


async def load(url: str) -> Counted:
    """Return what the clients counted of a load with eight requests at a time."""
    counted = Counted()
    places = asyncio.Semaphore(8)

    async def placed(number: int) -> None:
        # A connection each, so that several API processes share them.
        async with places, httpx.AsyncClient(base_url=url, timeout=60) as client:
            await one(client, number, counted)

    await asyncio.gather(*(placed(number) for number in range(NUM_REQUESTS)))
    return counted


def scrape(url: str) -> dict[str, float]:
    """Return sample name -> value, labels but the finish reason added up; buckets left out."""
    found: Counter[str] = Counter()
    text = httpx.get(f"{url}/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                reason = sample.labels.get("finished_reason")
                found[f"{sample.name}:{reason}" if reason else sample.name] += sample.value
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def check_metrics(url: str, counted: Counted) -> None:
    num_gone = sum(reason == "abort" for reason in counted.ended.values())
    num_whole = len(counted.ended) - num_gone
    # A client's leaving is noticed when the system says so, on a busy machine late.
    wait_until(lambda: scrape(url)["vllm:request_success_total:abort"] == num_gone, 15.0)
    wait_until(lambda: scrape(url)["vllm:num_requests_running"] == 0)
    found = scrape(url)
    for prefix in ("dovetail:", "vllm:"):
        gauges = ("num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc")
        assert [found[prefix + name] for name in gauges] == [0, 0, 0]
        ends = {r: found[f"{prefix}request_success_total:{r}"] for r in ("stop", "length", "abort")}
        ends["error"] = found["dovetail:faults_total"]
        assert ends == {**counted.reasons, "abort": num_gone, "error": 0}
        assert all(ends[reason] > 0 for reason in ("stop", "length", "abort"))
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds",
                     "time_to_first_token_seconds", "request_params_n"):  # fmt: skip
            assert found[f"{prefix}{name}_count"] == num_whole + num_gone
    # Of those that left, the server alone knows how much it had made for them.
    left = found["vllm:request_generation_tokens_sum"] - counted.generated_tokens
    assert num_gone <= left <= num_gone * 2000
    assert found["vllm:generation_tokens_total"] == counted.generated_tokens + left
    gaps = found["vllm:time_per_output_token_seconds_count"]
    assert gaps == counted.num_gaps + left - num_gone
    prompts = found["vllm:prompt_tokens_total"]
    assert prompts == found["vllm:request_prompt_tokens_sum"] > counted.prompt_tokens
    assert found["dovetail:cached_prompt_tokens_total"] >= counted.cached_tokens > 0
    assert found["dovetail:refused_requests_total"] == counted.refused
    check_the_whole_ones(url, found)


def check_the_whole_ones(url: str, before: dict[str, float]) -> None:
    """Without clients that leave, every sum is exact."""
    counted = Counted()

    async def main() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for number in (1, 3, 4, 5, 7, 9, 10, 11):
                await one(client, number, counted)

    asyncio.run(main())
    found = scrape(url)
    grown = {name: found[name] - before[name] for name in found}
    assert grown["vllm:prompt_tokens_total"] == counted.prompt_tokens
    assert grown["vllm:generation_tokens_total"] == counted.generated_tokens
    assert grown["vllm:request_generation_tokens_sum"] == counted.generated_tokens
    assert grown["vllm:time_per_output_token_seconds_count"] == counted.num_gaps
    assert grown["dovetail:cached_prompt_tokens_total"] == counted.cached_tokens > 0


def check_traces(spans: list[Any], ended: dict[str, str]) -> None:
    parents = {span.span_id: span for span in spans if span.kind == span.SPAN_KIND_SERVER}
    by_trace = {span.trace_id.hex(): span for span in parents.values()}
    assert ended.keys() <= by_trace.keys()
    for trace, reason in ended.items():
        span = by_trace[trace]
        found = attributes_of(span)
        assert found["gen_ai.response.finish_reasons"][0] == reason
        assert (span.status.code == span.status.STATUS_CODE_ERROR) is (reason == "abort")
        assert found["gen_ai.latency.time_in_model_forward"] > 0
    names: Counter[str] = Counter()
    for child in (span for span in spans if span.span_id not in parents):
        parent = parents[child.parent_span_id]
        assert child.trace_id == parent.trace_id
        assert parent.start_time_unix_nano <= child.start_time_unix_nano
        assert child.start_time_unix_nano <= child.end_time_unix_nano
        assert child.end_time_unix_nano <= parent.end_time_unix_nano
        names[child.name] += 1
    assert names == dict.fromkeys(("queue", "prefill", "decode"), len(parents))


def check_lines(path: Path, ended: dict[str, str]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    reasons = {line["trace_id"]: line["finish_reasons"][0] for line in lines}
    assert len(reasons) == len(lines)
    assert reasons.items() >= ended.items()


def ask_each(server: ServerProcess) -> int:
    """Send a request to each API process, by stopping the others; return how many there are. A
    process that is busy leaves new connections to the others, so that one may have had all."""
    processes = [p for p in server.serving() if API_PROCESS in p.cmdline()]
    for asked in processes:
        others = [process for process in processes if process != asked]
        for process in others:
            process.suspend()
        body = {"prompt": PREFIX, "max_tokens": 2}
        headers = traced(secrets.token_hex(16))
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        for process in others:
            process.resume()
    return len(processes)


@pytest.mark.parametrize("count", [1, 2])
def test_numbers_can_be_trusted(count: int, tmp_path: Path) -> None:
    with Collector() as collector:
        with ServerProcess(
            "--port", "0", "--api-server-count", str(count), "--enable-prompt-tokens-details",
            "--otlp-traces-endpoint", collector.address, "--collect-detailed-traces", "model",
            "--stat-loggers", "prometheus", "jsonl",
            "--plugin-options.stat_logger.jsonl.path", str(tmp_path / "requests"),
        ) as server:  # fmt: skip
            server.wait_ready()
            counted = asyncio.run(load(server.url))
            check_metrics(server.url, counted)
            num_requests = len(counted.ended) + 8 + (ask_each(server) if count > 1 else 0)
            server.process.send_signal(signal.SIGTERM)  # what is queued is sent at the end
            assert server.wait() == 0
        spans = collector.wait_for(4 * num_requests, 1.0)
    assert len(spans) == 4 * num_requests
    check_lines(tmp_path / "requests", counted.ended)
    check_traces(spans, counted.ended)
    senders = {facts["process.pid"] for facts in collector.resources()}
    assert len(senders) == count
