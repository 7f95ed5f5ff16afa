"""The client and the whole command against a scripted server: cuts, errors, broken connections."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench import serve_streamed
from dovetail_plugins.bench.answers import RequestOutcome, read_answer
from dovetail_plugins.bench.client import RequestTarget, send, target_of
from dovetail_plugins.bench.load import run_load
from dovetail_plugins.bench.load_run import ServerError
from dovetail_plugins.bench.settings import (
    DatasetFlags,
    LoadFlags,
    MetricFlags,
    ReportFlags,
    ServeFlags,
    TargetFlags,
)
from support.scripted_server import Handler, Scripted, Writer, serving

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def ask(handler: Handler, **target: Any) -> RequestOutcome:
    """Return what one request to a scripted server came to."""

    async def work() -> RequestOutcome:
        async with serving(Scripted(handler)) as found:
            fields = {name: getattr(found, name) for name in ("host", "port", "path", "headers")}
            other = RequestTarget(**{**fields, "timeout_s": 5.0, **target})
            return read_answer(await send(other, other.request("POST", other.path, b"{}")))

    return asyncio.run(work())


def event(text: str, total: int | None = None, reason: str | None = None) -> bytes:
    body: dict[str, Any] = {"choices": [{"text": text, "finish_reason": reason}]}
    if total is not None:
        body["usage"] = {"prompt_tokens": 4, "completion_tokens": total}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


WHOLE = event("a", 1) + event("b\u20ac0\r\n\r\n", 2) + event("c", 3, "length") + b"data: [DONE]\n\n"


@pytest.mark.parametrize("seed", range(12))
def test_chunks_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)

    async def handler(body: dict[str, Any], writer: Writer) -> None:
        cuts = sorted(rng.sample(range(1, len(WHOLE)), 6))
        ends = zip([0, *cuts], [*cuts, len(WHOLE)], strict=True)
        sent = CHUNKED + b"".join(chunk(WHOLE[a:b]) for a, b in ends) + b"0\r\n\r\n"
        places = [0, *sorted(rng.sample(range(1, len(sent)), 8)), len(sent)]
        for start, end in pairwise(places):
            writer.write(sent[start:end])
            await asyncio.sleep(0)

    answer = ask(handler)
    assert answer.error is None
    assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (4, 3, "length")


def test_times_are_those_of_the_socket() -> None:
    async def handler(body: dict[str, Any], writer: Writer) -> None:
        writer.write(CHUNKED)
        for data in (event("a", 1), event("bcd", 4, "length"), b"data: [DONE]\n\n"):
            await asyncio.sleep(0.06)
            writer.write(chunk(data))
        writer.write(b"0\r\n\r\n")

    answer = ask(handler)
    assert answer.ttft_s is not None and 0.05 < answer.ttft_s < 0.5
    gaps = answer.itl_s()
    assert len(gaps) == 3
    assert len(set(gaps)) == 1
    assert 0.05 < sum(gaps) < 0.5
    assert answer.e2e_s >= answer.ttft_s + sum(gaps) + 0.05


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (CHUNKED + chunk(event("a", 1)), "connection ended"),
        (CHUNKED + chunk(event("a", 1))[:-9], "connection ended"),
        (b"", "connection ended"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + event("a"), "connection ended"),
        (b"SMTP ready\r\n\r\n", "not HTTP"),
        (
            CHUNKED + chunk(event("a", 1)) + chunk(b'data: {"error": {"message": "NaN"}}\n\n')
            + b"0\r\n\r\n",
            "error in the stream: NaN",
        ),
        (
            b'HTTP/1.1 429 Too Many\r\nContent-Length: 28\r\n\r\n{"error": {"message": "no"}}',
            "status 429: no",
        ),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told(sent: bytes, text: str) -> None:
    async def handler(body: dict[str, Any], writer: Writer) -> None:
        writer.write(sent)

    assert text in str(ask(handler).error)


def test_an_answer_may_end_with_its_connection() -> None:
    async def handler(body: dict[str, Any], writer: Writer) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + WHOLE)

    assert ask(handler).error is None


def test_a_silent_server_is_given_up() -> None:
    async def handler(body: dict[str, Any], writer: Writer) -> None:
        await asyncio.sleep(0.3)

    assert "within 0.1 s" in str(ask(handler, timeout_s=0.1).error)


def test_nobody_listens() -> None:
    target = target_of("http://127.0.0.1:9", "/v1/completions", api_key=None, timeout_s=2)
    answer = read_answer(asyncio.run(send(target, b"")))
    assert "Refused" in str(answer.error)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h:1", "http://h:1/v1/completions"),
        ("h:1/", "http://h:1/v1/completions"),
        ("https://h/v1", "https://h:443/v1/completions"),
        ("http://h/api/v1/", "http://h:80/api/v1/completions"),
    ],
)
def test_addresses(base_url: str, url: str) -> None:
    assert target_of(base_url, "/v1/completions", api_key=None, timeout_s=1).url == url


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an address"):
        target_of("ftp://h", "/v1/completions", api_key=None, timeout_s=1)


def test_the_limit_of_concurrency_is_kept() -> None:
    running = most = 0

    async def handler(body: dict[str, Any], writer: Writer) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        writer.write(CHUNKED + chunk(WHOLE) + b"0\r\n\r\n")

    async def work() -> list[RequestOutcome]:
        async with serving(Scripted(handler)) as target:
            requests = [target.request("POST", target.path, b"{}")] * 9
            traces = await run_load(target, requests, [0.0] * 9, max_concurrency=3)
            return [read_answer(trace) for trace in traces]

    assert all(answer.error is None for answer in asyncio.run(work()))
    assert most == 3


class Numbers(BenchDataset):
    """Prompt i is the token id i, twice; or as text."""

    info = Info(summary="numbers")

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return them."""
        ids = [(i, i) for i in range(query.num_prompts)]
        return [BenchPrompt(prompt=str(i) if query.needs_text else i, output_tokens=3) for i in ids]


def flags(url: str, **target: Any) -> ServeFlags:
    return ServeFlags(
        dataset=DatasetFlags(num_prompts=5, num_warmups=2, dataset_name=DATASET),
        target=TargetFlags(base_url=url, **target),
        load=LoadFlags(max_concurrency=2),
        metrics=MetricFlags(),
        report=ReportFlags(),
    )


DATASET = f"{__file__}:Numbers"


async def good(body: dict[str, Any], writer: Writer) -> None:
    writer.write(CHUNKED + chunk(WHOLE) + b"0\r\n\r\n")


def measured(script: Scripted, **target: Any) -> serve_streamed.StreamedRun:
    async def work() -> serve_streamed.StreamedRun:
        async with serving(script):
            return await serve_streamed.measure(flags(script.url, **target))

    return asyncio.run(work())


def test_a_whole_run() -> None:
    script = Scripted(good, [{"id": "first", "root": "/no/folder"}, {"id": "second"}])
    found = measured(script, api_key="k", ignore_eos=True, extra_body={"top_k": 3, "stream": None})
    probe, *bodies = script.bodies
    assert probe["prompt"] == [7, 7] and probe["max_tokens"] == 1
    assert sorted(body["prompt"] for body in bodies[:2]) == [[5, 5], [6, 6]]  # the warm-ups
    assert sorted(body["prompt"] for body in bodies[2:]) == [[i, i] for i in range(5)]
    assert [prompt.prompt for prompt in found.prompts] == [(i, i) for i in range(5)]
    assert len(found.traces) == 5
    wanted = {"model": "first", "max_tokens": 3, "ignore_eos": True, "top_k": 3, "temperature": 0.0}
    assert bodies[0].items() >= wanted.items()
    assert "stream" not in bodies[0]
    assert bodies[0]["stream_options"]["continuous_usage_stats"] is True
    assert all("Authorization: Bearer k\r\n" in head for head in script.heads)


def test_a_server_that_knows_no_running_usage() -> None:
    async def picky(body: dict[str, Any], writer: Writer) -> None:
        if "continuous_usage_stats" in body["stream_options"]:
            writer.write(b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
        else:
            await good(body, writer)

    found = measured(Scripted(picky))
    assert found.dialect.usage == {"include_usage": True}


def test_chats_are_asked_in_messages() -> None:
    script = Scripted(good)
    measured(script, endpoint="/v1/chat/completions", model="m")
    assert script.bodies[1]["messages"][0]["role"] == "user"
    assert script.bodies[1]["max_completion_tokens"] == 3


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"model": "other"}, "no model 'other'"),
        ({"endpoint": "/v1/audio/speech"}, "cannot be measured"),
    ],
)
def test_what_cannot_be_asked(target: dict[str, Any], text: str) -> None:
    with pytest.raises(Exception, match=text):
        measured(Scripted(good), **target)


def test_a_first_request_that_fails_ends_the_run() -> None:
    async def bad(body: dict[str, Any], writer: Writer) -> None:
        writer.write(b'HTTP/1.1 500 No\r\nContent-Length: 28\r\n\r\n{"error": {"message": "no"}}')

    script = Scripted(bad)
    with pytest.raises(ServerError, match="status 500: no"):
        measured(script)
    assert len(script.bodies) == 1
