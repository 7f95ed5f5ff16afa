"""/v1/responses: its events, what is kept, what is refused; asked by the openai client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import NotFound, RequestFault
from dovetail_plugins.apis.responses.owned import OVERHEAD_BYTES
from dovetail_plugins.apis.responses.state import ResponsesState
from dovetail_plugins.apis.responses.store import ResponseStore
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_spec
from support.serving import app_for, client_of, send

openai = pytest.importorskip("openai")
ANSWER = '<think>\nwhy\n</think>\n\nHello [call]add {"a": 1}[/call]\n[call]sub {}[/call] bye'
TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]


def with_openai(app: FastAPI, work: Callable[[Any], Awaitable[Any]], key: str = "none") -> Any:
    async def main() -> Any:
        async with client_of(app) as http:
            return await work(
                openai.AsyncOpenAI(
                    api_key=key, base_url="http://test/v1", http_client=http, max_retries=0
                )
            )

    return asyncio.run(main())


def ask(app: FastAPI, **fields: Any) -> Any:
    return send(app, "POST", "/v1/responses", {"input": "hi"} | fields)


def events_of(answer: Any) -> list[dict[str, Any]]:
    """Return the events; each one's name must be its type."""
    found = []
    for part in answer.text.strip().split("\n\n"):
        name, data = part.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(text)), chance.randint(0, 20)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_streamed_equals_whole(seed: int) -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, seed)))
    whole = ask(app, tools=TOOLS).json()
    events = events_of(ask(app, tools=TOOLS, stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    assert without_ids(final["output"]) == without_ids(whole["output"])
    assert final["usage"] == whole["usage"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len("\nwhy\n</think>")
    assert [item["type"] for item in whole["output"]] == [
        "reasoning", "message", "function_call", "function_call", "message",
    ]  # fmt: skip
    assert rebuilt(events) == final["output"]


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items as the deltas alone make them, checking that every part is opened first,
    closed once, and that what is told at its end is what came."""
    items: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open
            assert event["output_index"] == len(items)
            is_open = True
            items.append(event["item"])
        elif kind == "content_part.added":
            items[-1]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            items[-1]["content"][0]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == items[-1]["content"][0]["text"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == items[-1]["arguments"]
        elif kind == "content_part.done":
            assert event["part"] == items[-1]["content"][0]
        elif kind == "output_item.done":
            assert event["item"] == items[-1] | {"status": event["item"]["status"]}
            items[-1] = event["item"]
            is_open = False
        if "item_id" in event:
            assert event["item_id"] == items[-1]["id"]
    assert not is_open
    return items


def test_the_clients_own_accumulator_agrees() -> None:
    app, _ = app_for(Script(pieces=cut(ANSWER, 1)))

    async def work(client: Any) -> None:
        whole = await client.responses.create(model="fake", input="hi", tools=TOOLS)
        async with client.responses.stream(model="fake", input="hi", tools=TOOLS) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == whole.output_text == "Hello bye"
        assert final.output[0].content[0].text == "why"
        assert [c.arguments for c in final.output if c.type == "function_call"] == [
            '{"a": 1}',
            "{}",
        ]
        assert kinds[-1] == "response.completed"
        assert (await client.responses.retrieve(final.id)).output_text == "Hello bye"
        await client.responses.delete(final.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(final.id)

    with_openai(app, work)


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def test_a_conversation_goes_on_by_id_as_it_does_by_items() -> None:
    app, engine = app_for(Script(pieces=['<think>so</think>Hello [call]add {"a": 1}[/call]']))

    async def work(client: Any) -> None:
        first = await client.responses.create(
            model="fake", input="one", tools=TOOLS, instructions="be brief"
        )
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
        await client.responses.create(
            model="fake", input=[result], previous_response_id=first.id, tools=TOOLS
        )
        by_id = prompt_of(engine)
        items = [item.model_dump(exclude_none=True) for item in first.output]
        await client.responses.create(
            model="fake", input=[{"role": "user", "content": "one"}, *items, result], tools=TOOLS
        )
        assert prompt_of(engine) == by_id
        assert "be brief" not in by_id
        for text in ("user\none", "<think>so</think>Hello", '{"a": 1}', "tool\n5"):
            assert text in by_id

    with_openai(app, work)


def test_store_false_keeps_nothing() -> None:
    app, _ = app_for()
    kept = ask(app, store=False).json()
    assert kept["store"] is False
    assert len(app.state.api_states[ResponsesState].stored) == 0
    assert send(app, "GET", f"/v1/responses/{kept['id']}").status_code == 404
    answer = ask(app, previous_response_id=kept["id"])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
    )


def test_what_is_kept_belongs_to_its_key() -> None:
    app, _ = app_for(api_key=("a", "b"))
    made = send(app, "POST", "/v1/responses", {"input": "hi"}, x_api_key="a").json()
    path = f"/v1/responses/{made['id']}"
    assert send(app, "GET", path, x_api_key="b").status_code == 404
    assert send(app, "DELETE", path, authorization="Bearer b").status_code == 404
    assert send(app, "GET", path, authorization="Bearer a").json()["id"] == made["id"]


def test_background_polled_and_cancelled() -> None:
    app, engine = app_for(
        lambda prompt, index: Script(pieces=["a", "b"], hangs="hang" in prompt, step_s=0.01)
    )

    async def work(client: Any) -> None:
        made = await client.responses.create(model="fake", input="go", background=True)
        assert made.status == "queued"
        while (made := await client.responses.retrieve(made.id)).status in (
            "queued",
            "in_progress",
        ):
            await asyncio.sleep(0.01)
        assert (made.status, made.output_text) == ("completed", "ab")
        assert made.usage.output_tokens == 2
        slow = await client.responses.create(model="fake", input="hang", background=True)
        await asyncio.sleep(0.1)
        gone = await client.responses.cancel(slow.id)
        assert (gone.status, gone.output_text) == ("cancelled", "ab")
        assert (await client.responses.retrieve(slow.id)).status == "cancelled"
        assert engine.running == set()
        assert app.state.server.admission.num_inside == 0
        plain = await client.responses.create(model="fake", input="go")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(plain.id)

    with_openai(app, work)


def test_failures_are_told() -> None:
    app, _ = app_for(Script(pieces=("a",), raises=RequestFault("NaN")))
    events = events_of(ask(app, stream=True))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["sequence_number"] == len(events) - 1
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert "NaN" in failed["error"]["message"]
    kept = send(app, "GET", f"/v1/responses/{failed['id']}").json()
    assert kept["status"] == "failed"
    assert ask(app).status_code == 500

    async def work(client: Any) -> None:
        made = await client.responses.create(model="fake", input="hi", background=True)
        await asyncio.sleep(0.05)
        assert (await client.responses.retrieve(made.id)).status == "failed"

    with_openai(app, work)


def test_fields_reach_the_engine_and_come_back() -> None:
    app, engine = app_for(Script(pieces=("a",), finish_reason="length"))
    asked = {"temperature": 0.5, "top_p": 0.25, "metadata": {"k": "v"}, "max_output_tokens": 7}
    reply = ask(app, **asked, instructions="sys", reasoning={"effort": "none"}).json()
    assert {name: reply[name] for name in asked} == asked
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"
    params = engine.asked[-1][1]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.25, 7)
    assert prompt_of(engine).startswith("<|im_start|>system\nsys<|im_end|>")


def test_a_websocket_is_refused_so_that_clients_use_http() -> None:
    app, _ = app_for()
    upgrade = {"upgrade": "websocket", "connection": "Upgrade"}
    answer = send(app, "GET", "/v1/responses", **upgrade)
    assert (answer.status_code, "WebSocket" in answer.text) == (426, True)
    plain = send(app, "GET", "/v1/responses")
    assert (plain.status_code, plain.headers["allow"]) == (405, "POST")
    assert plain.json()["error"]["code"] == "method_not_allowed"


REFUSED = [
    ({"conversation": {}}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"top_logprobs": 21}, "logprobs"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
    ({"n": 2}, "n"),
    ({"background": True, "store": False}, "background"),
    ({"input": [{"type": "computer_callx"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": []}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"thinking_token_budget": 3}, "thinking_token_budget"),
]


@pytest.mark.parametrize(("fields", "where"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_the_clients_field(fields: dict[str, Any], where: str) -> None:
    app, _ = app_for()
    answer = ask(app, **fields)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["param"] or "").startswith(where)


def test_what_changes_nothing_is_reported() -> None:
    app, _ = app_for()
    answer = ask(app, include=["web_search_call.results"], reasoning={"summary": "auto"}, x=1)
    assert answer.headers["x-dovetail-ignored-fields"] == "x, include, reasoning.summary"


@pytest.mark.parametrize(("room", "first"), [(420, "question 8"), (120, "last"), (80, None)])
def test_truncation_drops_the_oldest_turns(room: int, first: str | None) -> None:
    app, engine = app_for(engine=FakeAsyncEngine(Script(), spec=fake_spec(max_model_tokens=room)))
    turns: list[dict[str, Any]] = []
    for number in range(12):
        turns.append({"role": "user", "content": f"question {number}"})
        turns.append({"role": "assistant", "content": "answer"})
    turns.append({"role": "user", "content": "last"})
    assert ask(app, input=turns, instructions="sys").status_code == 400
    answer = ask(app, input=turns, instructions="sys", truncation="auto")
    if first is None:
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        return
    assert answer.json()["truncation"] == "auto"
    head = "<|im_start|>system\nsys<|im_end|>\n<|im_start|>user\n"
    assert prompt_of(engine).startswith(f"{head}{first}<")


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_not_read_does_not_come_back(stream: bool) -> None:
    app, _ = app_for()
    tool = {"type": "function", "name": "add", "odd": "\ud800"}
    answer = ask(app, tools=[tool], tool_choice="auto", stream=stream)
    assert answer.status_code == 200
    reply = events_of(answer)[-1]["response"] if stream else answer.json()
    assert reply["status"] == "completed"
    assert reply["tools"] == [{"type": "function", "name": "add", "strict": None}]


def test_several_processes_keep_nothing() -> None:
    app, _ = app_for(api_server_count=2)
    assert ask(app).json()["store"] is False
    for fields in ({"background": True}, {"previous_response_id": "r"}, {"conversation": "c"}):
        answer = ask(app, **fields)
        assert answer.status_code == 400
        assert "--api-server-count" in answer.json()["error"]["message"]


class Live:
    def __init__(self, name: str) -> None:
        self.id = name

    def encoded(self) -> bytes:
        return b"x" * 60


def test_the_store_is_bounded_in_bytes_and_time() -> None:
    now = [0.0]
    store = ResponseStore(max_bytes=140 + 3 * OVERHEAD_BYTES, kept_s=10, clock=lambda: now[0])
    running = Live("running")
    store.begin(running, "me", is_background=True)
    for name in ("a", "b", "c"):
        live = Live(name)
        store.begin(live, "me", is_background=False)
        store.settle(live, [])
    assert len(store) == 3
    with pytest.raises(NotFound):
        store.get("a", "me")
    assert store.get("c", "me").reply_json() == b"x" * 60
    now[0] = 11.0
    with pytest.raises(NotFound):
        store.get("c", "me")
    assert len(store) == 1
    store.settle(running, [])
    with pytest.raises(NotFound):
        store.get("running", "me")
