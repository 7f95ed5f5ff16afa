"""Compaction: /v1/responses/compact, context_management and compaction_trigger, by OpenAI's client
and its types."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.errors import RequestFault
from dovetail_plugins.apis._sealed import sealed
from dovetail_plugins.apis.responses.compaction import HEAD, SUMMARY_TOKENS
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.response_events import adapter, ask, checked_events, whole
from support.serving import app_for, client_of, send

openai = pytest.importorskip("openai")
CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "long result " * 20}
TURNS = [
    {"role": "developer", "content": "the rules"},
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "long answer " * 20},
    CALL,
    RESULT,
    {"role": "assistant", "content": "done"},
]
QUESTION = {"role": "user", "content": "second question"}
TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
FOREIGN = sealed("text", "reasoning")


def scripted(prompt: str, index: int) -> Script:
    is_summary = "Write a summary of this conversation" in prompt
    return Script(pieces=["<think>hm</think>", "what was done" if is_summary else "the answer"])


def prompt_of(engine: FakeAsyncEngine, which: int = -1) -> str:
    return engine.tokenizer.decode(engine.asked[which][2]["prompt"])


def turns_in(engine: FakeAsyncEngine) -> list[tuple[str, str]]:
    """Return (role, text) of each turn of the last prompt."""
    pieces = prompt_of(engine).split("<|im_start|>")[1:-1]
    pairs = [piece.split("\n", 1) for piece in pieces]
    return [(role, text.split("<|im_end|>")[0]) for role, text in pairs]


def compact(app: Any, **fields: Any) -> dict[str, Any]:
    answer = send(app, "POST", "/v1/responses/compact", {"model": "fake", **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


SUMMARY = ("user", f"{HEAD}what was done")
RULES = ("system", "the rules")
FIRST = ("user", "first question")
SECOND = ("user", "second question")


def test_the_clients_compaction() -> None:
    app, engine = app_for(scripted)

    async def work() -> Any:
        async with client_of(app) as http:
            client = openai.AsyncOpenAI(api_key="k", base_url="http://test/v1", http_client=http)
            return await client.responses.compact(
                model="fake", input=TURNS, instructions="be brief"
            )

    made = asyncio.run(work())
    assert (made.object, [item.type for item in made.output]) == (
        "response.compaction",
        ["message", "compaction"],
    )
    assert made.output[0].content[0].text == "first question"
    adapter("ResponseCompactionItem").validate_python(made.output[1].to_dict())
    assert made.usage.output_tokens_details.reasoning_tokens > 0
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert "be brief" in prompt_of(engine)
    assert 0 < (engine.asked[-1][1].max_tokens or 0) <= SUMMARY_TOKENS


def test_what_was_compacted_goes_on() -> None:
    app, engine = app_for(scripted)
    output = compact(app, input=TURNS, tools=TOOLS)["output"]
    reply = whole(app, input=[TURNS[0], *output, QUESTION])
    assert reply["status"] == "completed"
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]
    whole(app, input=[output[-1], QUESTION])
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]
    whole(app, input=[*TURNS, output[-1], QUESTION])
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]
    again = compact(app, input=[*output, QUESTION, TURNS[2]])["output"]
    assert [item["type"] for item in again] == ["message", "message", "compaction"]
    whole(app, input=again)
    assert turns_in(engine) == [RULES, FIRST, SECOND, SUMMARY]


def test_a_stored_conversation_is_compacted_by_id() -> None:
    app, engine = app_for(scripted)
    first = whole(app, input="first question")
    output = compact(app, previous_response_id=first["id"])["output"]
    assert [item["type"] for item in output] == ["message", "compaction"]
    whole(app, input=[*output, QUESTION])
    assert turns_in(engine) == [FIRST, SUMMARY, SECOND]


def test_a_question_without_an_answer_stays_last() -> None:
    app, engine = app_for(scripted)
    whole(app, input=compact(app, input=[*TURNS, QUESTION])["output"])
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]


@pytest.mark.parametrize("stream", [False, True])
def test_a_threshold_compacts_within_a_response(stream: bool) -> None:
    app, engine = app_for(scripted)
    fields = {
        "input": [*TURNS, QUESTION],
        "tools": TOOLS,
        "context_management": [{"type": "compaction", "compact_threshold": 300}],
    }
    if stream:
        events = checked_events(app, **fields)
        kinds = [event["type"] for event in events[2:6]]
        assert kinds == [
            "response.output_item.added",
            "response.compaction.compacting",
            "response.output_item.done",
            "response.output_item.added",
        ]
        reply = events[-1]["response"]
    else:
        reply = whole(app, **fields)
    assert [item["type"] for item in reply["output"]] == ["compaction", "reasoning", "message"]
    assert turns_in(engine)[:4] == [RULES, FIRST, SUMMARY, SECOND]
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == 2 * len("hm</think>")
    third = {"role": "user", "content": "third"}
    whole(app, input=[*TURNS, QUESTION, *reply["output"], third])
    by_items = turns_in(engine)
    assert [role for role, _ in by_items] == ["system", "user", "user", "user", "assistant", "user"]
    whole(app, input=[third], previous_response_id=reply["id"])
    assert turns_in(engine) == by_items
    whole(app, input=[*reply["output"], third])
    assert turns_in(engine) == by_items


def test_below_the_threshold_nothing_changes() -> None:
    app, engine = app_for(scripted)
    entry = {"type": "compaction", "compact_threshold": 3000}
    assert "compaction" not in [i["type"] for i in whole(app, context_management=[entry])["output"]]
    short = entry | {"compact_threshold": 1}
    alone = whole(app, input="only a question", context_management=[short])
    assert "compaction" not in [item["type"] for item in alone["output"]]
    assert len(engine.asked) == 2


@pytest.mark.parametrize("entry", [{"type": "compaction"}, {"type": "forgetting"}])
def test_other_context_management_is_named(entry: dict[str, Any]) -> None:
    answer = ask(app_for(scripted)[0], context_management=[entry])
    assert answer.headers["x-dovetail-ignored-fields"] == "context_management"


def test_a_trigger_is_answered_with_a_compaction_alone() -> None:
    app, engine = app_for(scripted)
    events = checked_events(app, input=[*TURNS, {"type": "compaction_trigger"}])
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], events[-1]["type"]) == ("compaction", "response.completed")
    assert len(engine.asked) == 1
    whole(app, input=[item, QUESTION])
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]


def test_a_conversation_is_replaced_too() -> None:
    app, engine = app_for(scripted)
    made = send(app, "POST", "/v1/conversations", {"items": TURNS}).json()["id"]
    whole(app, input=[{"type": "compaction_trigger"}], conversation=made)
    whole(app, input=[QUESTION], conversation=made)
    assert turns_in(engine) == [RULES, FIRST, SUMMARY, SECOND]


SEALS = ["x", "gAAAAABo", FOREIGN, FOREIGN[:-4] + "AAAA", ""]


@pytest.mark.parametrize("seal", SEALS)
def test_compactions_of_others_are_left_out(seal: str) -> None:
    app, engine = app_for(scripted)
    item = {"type": "compaction", "id": "i", "encrypted_content": seal}
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = send(app, "POST", path, {"input": [*TURNS, item, QUESTION]})
        assert answer.status_code == 200, answer.text
        assert "input.compaction" in answer.headers["x-dovetail-ignored-fields"]
    turns = turns_in(engine)
    whole(app, input=[*TURNS, QUESTION])
    assert turns_in(engine) == turns


@pytest.mark.parametrize(
    ("kind", "seal"),
    [("compaction", 3), ("compaction", None)]
    + [("reasoning", sealed("x", "compaction") if seal == FOREIGN else seal) for seal in SEALS[:4]]
    + [("reasoning", 3)],
)
def test_seals_that_cannot_be_read_are_refused(kind: str, seal: Any) -> None:
    app, engine = app_for(scripted)
    item = {"type": kind, "id": "i", "summary": [], "encrypted_content": seal}
    for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
        answer = send(app, "POST", path, {"input": [QUESTION, item]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (
            400,
            "input[1].encrypted_content",
        )
    answer = send(app, "POST", "/v1/conversations", {"items": [item]})
    assert answer.json()["error"]["param"] == "items[0].encrypted_content"
    assert engine.asked == []
    assert ask(app).status_code == 200


def test_a_summary_that_fails_ends_one_request() -> None:
    empty = Script(pieces=["<think>only thoughts</think>"])
    failing = Script(pieces=["a"], raises=RequestFault("NaN"))
    for one in (empty, failing):
        app, _ = app_for(one)
        assert send(app, "POST", "/v1/responses/compact", {"input": TURNS}).status_code == 500
        events = checked_events(app, input=[*TURNS, {"type": "compaction_trigger"}])
        assert events[-1]["type"] == "response.failed"
    answer = send(app, "POST", "/v1/responses/compact", {"input": []})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
