"""/v1/messages: events, errors, and what a conversation becomes; by the anthropic client."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.anthropic_client import with_anthropic
from support.serving import USER, app_for, send

anthropic = pytest.importorskip("anthropic")
ANSWER = '<think>\nwhy\n</think>\n\nHello [call]add {"a": 1}[/call]\n[call]sub {}[/call] bye'
TOOLS = [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}]


def ask(app: FastAPI, **fields: Any) -> Any:
    return send(app, "POST", "/v1/messages", {"messages": USER, "max_tokens": 99} | fields)


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(text)), chance.randint(0, 20)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_streamed_equals_whole(seed: int) -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, seed)), enable_prompt_tokens_details=True)
    wanted = {"model": "fake", "max_tokens": 99, "messages": USER, "tools": TOOLS}

    async def work(client: Any) -> None:
        whole = await client.messages.create(**wanted)
        async with client.messages.stream(**wanted) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        told = [block.model_dump(exclude={"id", "parsed_output"}) for block in final.content]
        assert told == [block.model_dump(exclude={"id"}) for block in whole.content]
        assert [block.type for block in whole.content] == [
            "thinking", "text", "tool_use", "tool_use", "text",
        ]  # fmt: skip
        assert whole.content[2].input == {"a": 1}
        assert len(whole.content[0].signature) == 44  # clients drop thoughts without one
        assert whole.stop_reason == final.stop_reason == "tool_use"
        assert final.usage == whole.usage
        usage = whole.usage
        assert usage.output_tokens_details.thinking_tokens == len("\nwhy\n</think>")
        assert usage.output_tokens == len(ANSWER)
        counted = await client.messages.count_tokens(model="fake", messages=USER, tools=TOOLS)
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")

    with_anthropic(app, work)


def test_the_events_and_their_order() -> None:
    app, _ = app_for(Script(pieces=["a", "b"]))
    text = ask(app, stream=True).text
    parts = [part.split("\n", 1) for part in text.strip().split("\n\n")]
    datas = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [name.removeprefix("event: ") for name, _ in parts] == [d["type"] for d in datas]
    assert [d["type"] for d in datas] == [
        "message_start", "ping", "content_block_start", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert datas[0]["message"]["content"] == []
    assert datas[0]["message"]["usage"]["input_tokens"] > 0
    assert datas[-2]["usage"]["output_tokens"] == 2


CONVERSATION = [
    {"role": "user", "content": [{"type": "text", "text": "one"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "sure"},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "5"}],
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "text", "text": "and?"},
        ],
    },
]


def test_a_conversation_becomes_the_same_prompt_as_in_chat() -> None:
    app, engine = app_for()
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    call = {"id": "t1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "sure", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "5"},
        {"role": "user", "content": "and?"},
    ]
    send(app, "POST", "/v1/chat/completions", {"messages": turns, "tools": tools})
    wanted = prompt_of(engine)
    answer = ask(app, messages=CONVERSATION, system="sys", tools=TOOLS)
    assert answer.status_code == 200
    assert prompt_of(engine) == wanted
    ignored = answer.headers["x-dovetail-ignored-fields"]
    assert "redacted_thinking" in ignored
    assert "cache_control" not in ignored


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    app, engine = app_for()
    ask(app, messages=[*USER, {"role": "assistant", "content": "It is"}])
    assert prompt_of(engine).endswith("<|im_start|>assistant\nIt is")


def test_settings_reach_the_engine() -> None:
    app, engine = app_for(Script(pieces=["a"], stop_reason="END"))
    reply = ask(app, temperature=0.5, top_k=3, top_p=0.5, stop_sequences=["END"]).json()
    params = engine.asked[-1][1]
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.5)
    assert (params.stop, params.max_tokens) == (("END",), 99)
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize(("kind", "is_on"), [("enabled", True), ("disabled", False)])
def test_thinking_is_a_switch_of_the_template(kind: str, is_on: bool) -> None:
    app, engine = app_for()
    answer = ask(app, thinking={"type": kind, "budget_tokens": 2000})
    assert prompt_of(engine).endswith("<think>\n") is is_on
    assert answer.headers["x-dovetail-ignored-fields"] == "thinking.budget_tokens"


@pytest.mark.parametrize(
    ("choice", "num_calls"),
    [({"type": "auto"}, 2), ({"type": "auto", "disable_parallel_tool_use": True}, 1),
     ({"type": "none"}, 0)],
)  # fmt: skip
def test_tool_choice(choice: dict[str, Any], num_calls: int) -> None:
    app, _ = app_for(Script(pieces=[ANSWER]))
    content = ask(app, tools=TOOLS, tool_choice=choice).json()["content"]
    assert sum(block["type"] == "tool_use" for block in content) == num_calls


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_call_that_must_be_made_needs_a_form(choice: dict[str, Any]) -> None:
    app, _ = app_for()
    answer = ask(app, tools=TOOLS, tool_choice=choice)
    assert answer.status_code == 400
    assert "schema" in answer.json()["error"]["message"]


REFUSED = [
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
    {"tool_choice": {"type": "tool", "name": "gone"}, "tools": TOOLS},
    {"output_config": {"format": {"type": "xml"}}},
    {"max_tokens": 0},
    {"n": 2},
]


@pytest.mark.parametrize("fields", REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_have_anthropics_shape(fields: dict[str, Any]) -> None:
    app, _ = app_for()
    answer = ask(app, **fields)
    assert answer.status_code == 400
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"]


def test_errors_become_the_clients_exceptions() -> None:
    app, _ = app_for(Script(pieces=("a",), raises=RequestFault("NaN")), api_key=("key",))
    wanted = {"max_tokens": 9, "messages": USER}

    async def work(client: Any) -> None:
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="none", **wanted)
        with pytest.raises(anthropic.InternalServerError, match="NaN"):
            await client.messages.create(model="fake", **wanted)
        stream = await client.messages.create(model="fake", stream=True, **wanted)
        with pytest.raises(anthropic.APIStatusError, match="NaN"):
            [event async for event in stream]

    with_anthropic(app, work, key="key")

    async def locked(client: Any) -> None:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(model="fake", **wanted)

    with_anthropic(app, locked, key="wrong")


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"output_config": {"effort": "high"}}, None),
        ({"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}, False),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "enabled"}}, True),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "adaptive"}}, None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_effort_alone_switches_no_thinking_on(
    path: str, fields: dict[str, Any], thinks: bool | None
) -> None:
    body = {"messages": USER} | ({"max_tokens": 9} if path == "/v1/messages" else {})
    given = send(app_for()[0], "POST", path, body | fields)
    type_of = {True: "enabled", False: "disabled"}
    alike = {} if thinks is None else {"thinking": {"type": type_of[thinks]}}
    plain = send(app_for()[0], "POST", path, body | alike)
    assert given.status_code == plain.status_code == 200
    counts = [answer.json().get("usage", answer.json()) for answer in (given, plain)]
    assert counts[0] == counts[1]
    ignored = given.headers.get("x-dovetail-ignored-fields", "")
    assert ("output_config.effort" in ignored) == ("output_config" in fields)
