"""Every dialect's usage says how many prompt tokens came from the cache, streamed as whole; where
nobody counts them, none says a number."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from anthropic.types import Message, MessageDeltaUsage
from anthropic.types import Usage as MessageUsage
from openai.types import CompletionUsage
from openai.types.responses import ResponseUsage

from dovetail.server.endpoint import (
    SamplingFields,
)
from dovetail_plugins.usage import shows_cached
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import USER, app_for, send, with_client

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": ["hello", "good day"], "stream_options": {"include_usage": True}},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/api/chat": {"model": "fake", "messages": USER},
    "/api/generate": {"model": "fake", "prompt": "hello"},
}


def events_of(answer: httpx.Response) -> list[Any]:
    """Return the decoded events of a stream."""
    datas = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(data) for data in datas]


def usage_of(path: str, app: Any, *, stream: bool, **more: Any) -> dict[str, Any]:
    """Return the usage of one answer, and of a stream that of its last event."""
    body = BODIES[path] | more | {"stream": stream}
    if not stream:
        body.pop("stream_options", None)
    answer = send(app, "POST", path, body)
    assert answer.status_code == 200, answer.text
    if path.startswith("/api"):
        last = json.loads(answer.text.splitlines()[-1])
        return {name: count for name, count in last.items() if name.endswith("_count")}
    if not stream:
        return dict(answer.json()["usage"])
    events = events_of(answer)
    if path == "/v1/responses":
        return dict(events[-1]["response"]["usage"])
    return dict([event for event in events if event.get("usage")][-1]["usage"])


def counts_of(path: str, usage: dict[str, Any]) -> tuple[int, Any]:
    """Return (prompt tokens, cached tokens or None), read with the types of the API's clients."""
    if path == "/v1/responses":
        response = ResponseUsage.model_construct(**usage)
        details = usage["input_tokens_details"]
        return response.input_tokens, details and details["cached_tokens"]
    if path == "/v1/messages":
        message = MessageUsage.model_validate(usage)
        cached = message.cache_read_input_tokens
        return message.input_tokens + (cached or 0), cached
    if path.startswith("/api"):
        return usage["prompt_eval_count"], usage.get("prompt_eval_cached_count")
    read = CompletionUsage.model_validate(usage)
    details = read.prompt_tokens_details
    return read.prompt_tokens, details and details.cached_tokens


@pytest.mark.parametrize("path", BODIES)
def test_cached_tokens_are_reported_unasked(path: str) -> None:
    app, _ = app_for(Script(pieces=["ab", "c"]))
    whole, streamed = (usage_of(path, app, stream=stream) for stream in (False, True))
    num_prompt, num_cached = counts_of(path, whole)
    assert counts_of(path, streamed) == (num_prompt, num_cached)
    assert 0 < num_cached <= num_prompt // 2  # the fake engine has half of every prompt
    if "completions" in path:
        assert whole == streamed
        assert whole["prompt_cache_hit_tokens"] == num_cached
        assert whole["prompt_cache_miss_tokens"] == num_prompt - num_cached


def without_cache() -> FakeAsyncEngine:
    """Return an engine that caches no prefixes."""
    engine = FakeAsyncEngine(Script())
    cache = msgspec.structs.replace(engine.spec.cache, uses_prefix_cache=False)
    engine.spec = msgspec.structs.replace(engine.spec, cache=cache)
    return engine


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("why", ["flag", "no cache", "fetched"])
def test_what_nobody_counts_has_no_number(path: str, stream: bool, why: str) -> None:
    more: dict[str, Any] = {}
    if why == "flag":
        app, _ = app_for(enable_prompt_tokens_details=False)
    elif why == "no cache":
        app, _ = app_for(engine=without_cache())
    else:
        app, _ = app_for()
        more = {"kv_transfer_params": {"do_remote_prefill": True}}
        if path == "/v1/completions":
            more["prompt"] = "hello"  # several prompts have different blocks
    usage = usage_of(path, app, stream=stream, **more)
    num_prompt, num_cached = counts_of(path, usage)
    assert num_prompt > 0 and num_cached is None
    assert usage.get("prompt_cache_hit_tokens") is None
    assert usage.get("prompt_cache_miss_tokens") is None
    assert usage.get("cache_creation_input_tokens") is None


def test_a_beam_search_has_no_number() -> None:
    app, _ = app_for()
    server = app.state.server
    assert shows_cached(server, SamplingFields())
    assert not shows_cached(server, SamplingFields(use_beam_search=True))


def test_a_message_begins_with_the_counts_that_it_ends_with() -> None:
    app, _ = app_for(Script(pieces=["ab", "c"]))
    body = BODIES["/v1/messages"] | {"stream": True}
    events = events_of(send(app, "POST", "/v1/messages", body))
    start = Message.model_validate(events[0]["message"]).usage
    (delta,) = [event for event in events if event["type"] == "message_delta"]
    end = MessageDeltaUsage.model_validate(delta["usage"])
    assert start.cache_read_input_tokens == end.cache_read_input_tokens
    assert start.input_tokens == end.input_tokens and start.cache_read_input_tokens
    assert start.cache_creation_input_tokens == end.cache_creation_input_tokens == 0


def test_a_response_that_never_began_has_no_usage() -> None:
    app, _ = app_for(Script(raises=RuntimeError("lost"), pieces=[]))

    async def fetched(client: httpx.AsyncClient) -> dict[str, Any]:
        asked = {"input": "hello", "background": True}
        made = (await client.post("/v1/responses", json=asked)).json()
        while made["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
            made = (await client.get(f"/v1/responses/{made['id']}")).json()
        return dict(made)

    made = with_client(app, fetched)
    assert made["status"] == "failed" and made["usage"] is None
