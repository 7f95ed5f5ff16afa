"""Messages in the shapes of the anthropic client: events, messages, and fields that it may send."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

from dovetail_testing.fakes.async_engine import Script
from support.anthropic_client import with_anthropic
from support.serving import USER, app_for, send

anthropic = pytest.importorskip("anthropic")
IGNORED = "x-dovetail-ignored-fields"
ANSWER = ["<think>\nwh", "y\n</think>\n\nHel", 'lo [call]add {"a"', ": 1}[/call]"]
ADD = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}
ASKED = {"model": "fake", "max_tokens": 99, "messages": USER, "tools": [ADD]}


def ask(app: Any, path: str = "/v1/messages?beta=true", **fields: Any) -> Any:
    return send(app, "POST", path, {"messages": USER, "max_tokens": 9} | fields)


def events_of(answer: Any) -> list[dict[str, Any]]:
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("is_beta", [False, True])
def test_every_event_and_message_has_the_clients_type(is_beta: bool) -> None:
    from anthropic.types import Message, RawMessageStreamEvent
    from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

    event_type = BetaRawMessageStreamEvent if is_beta else RawMessageStreamEvent
    one_of: Any = pydantic.TypeAdapter(event_type)
    app, _ = app_for(Script(pieces=ANSWER), enable_prompt_tokens_details=True)
    mark = {"cache_control": {"type": "ephemeral"}}
    events = events_of(ask(app, stream=True, tools=[ADD], **mark))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    for event in events:
        if event["type"] != "ping":
            one_of.validate_python(event)
    whole = ask(app, tools=[ADD], **mark).json()
    (BetaMessage if is_beta else Message).model_validate(whole)
    assert events[-2]["usage"] == {k: v for k, v in whole["usage"].items() if v is not None}
    signed = [one["delta"]["type"] for one in events if one.get("index") == 0 and "delta" in one]
    assert signed[-1] == "signature_delta"


@pytest.mark.parametrize("is_beta", [False, True])
def test_the_final_message_of_a_stream_is_the_whole_one(is_beta: bool) -> None:
    app, _ = app_for(Script(pieces=ANSWER))

    async def work(client: Any) -> None:
        messages = client.beta.messages if is_beta else client.messages
        more = {"betas": ["interleaved-thinking-2025-05-14"]} if is_beta else {}
        whole = await messages.create(**ASKED, **more)
        async with messages.stream(**ASKED, **more) as stream:
            final = await stream.get_final_message()
        hidden = {"id", "parsed_output"}
        found = [block.model_dump(exclude=hidden) for block in final.content]
        assert found == [block.model_dump(exclude=hidden) for block in whole.content]
        assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
        assert whole._request_id and f"msg_{whole._request_id}" == whole.id
        later = [
            *USER,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "2"}
            ]},
        ]  # fmt: skip
        again = await messages.create(**{**ASKED, "messages": later}, **more)
        counted = await messages.count_tokens(model="fake", messages=later, tools=[ADD], **more)
        usage = again.usage
        assert usage.cache_read_input_tokens > 0
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens

    with_anthropic(app, work)


NAMED = {
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "container": "c",
    "mcp_servers": [{"type": "url", "url": "https://a", "name": "a"}],
    "speed": "fast",
    "inference_geo": "us",
    "diagnostics": {"previous_message_id": "m"},
    "fallbacks": [{"model": "x"}],
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("path", ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"])
def test_what_a_service_would_do_is_named(path: str, name: str) -> None:
    headers = {"anthropic_beta": "a-2025-01-01,b", "anthropic_version": "2023-06-01"}
    app, _ = app_for()
    plain = send(app, "POST", path, {"messages": USER, "max_tokens": 9}, **headers)
    body = {"messages": USER, "max_tokens": 9, name: NAMED[name]}
    answer = send(app, "POST", path, body, **headers)
    assert (plain.status_code, answer.status_code) == (200, 200)
    assert answer.headers[IGNORED] == name
    for found in (plain, answer):
        counted = found.json().get("usage", found.json())
        assert counted["input_tokens"] == plain.json().get("usage", plain.json())["input_tokens"]


SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


@pytest.mark.parametrize(
    ("fields", "place", "why"),
    [
        (
            {"tools": [SEARCH, ADD], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice",
            "web_search_20250305",
        ),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice", "web_search"),
        ({"compaction": {"type": "summarize"}}, "compaction", "summarize"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type", "between_tools"),
    ],
)
def test_what_is_demanded_and_cannot_be_done_is_refused(fields: Any, place: str, why: str) -> None:
    answer = ask(app_for()[0], **fields)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{place}: ")
    assert why in message


def test_a_tool_of_a_service_among_others_may_be_offered() -> None:
    app, _ = app_for()
    for choice in ({"type": "auto"}, {"type": "none"}):
        answer = ask(app, tools=[SEARCH, ADD], tool_choice=choice)
        assert answer.status_code == 200
        assert "tools.web_search_20250305" in answer.headers[IGNORED]


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (Script(pieces=["a"]), "end_turn", None),
        (Script(pieces=["a"], stop_reason="END"), "stop_sequence", "END"),
        (Script(pieces=["a"], finish_reason="length"), "max_tokens", None),
        (Script(pieces=ANSWER), "tool_use", None),
    ],
)
def test_stop_reasons(script: Script, reason: str, sequence: str | None) -> None:
    app, _ = app_for(script)
    whole = ask(app, tools=[ADD]).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    (end,) = [e for e in events_of(ask(app, tools=[ADD], stream=True)) if "usage" in e]
    assert end["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_silent_stream_is_kept_open_by_pings() -> None:
    app, _ = app_for(Script(pieces=["a"], step_s=0.3), sse_keep_alive_interval=0.05)
    events = events_of(ask(app, stream=True))
    kinds = [event["type"] for event in events]
    assert kinds.count("ping") > 2
    assert kinds[-1] == "message_stop"

    async def work(client: Any) -> None:
        async with client.messages.stream(model="fake", max_tokens=9, messages=USER) as stream:
            assert (await stream.get_final_message()).content[0].text == "a"

    with_anthropic(app, work)
