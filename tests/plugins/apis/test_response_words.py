"""Tools and items of responses: every type that OpenAI's client knows, and what becomes of it."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest

from dovetail_plugins.apis.responses.turns import messages_of
from dovetail_plugins.apis.responses.words import ITEMS, TOOLS
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import app_for, send

pytest.importorskip("openai")
IGNORED = "x-dovetail-ignored-fields"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
NOTE = {"type": "custom", "name": "note", "format": {"type": "text"}}
SUMS = {"type": "namespace", "name": "sums", "description": "sums", "tools": [ADD, NOTE]}


def ask(app: Any, **fields: Any) -> Any:
    return send(app, "POST", "/v1/responses", {"input": "hi", **fields})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def types_of(union: Any) -> set[str]:
    """Return the types that a union of the client's knows."""
    found: set[str] = set()
    for one in typing.get_args(union):
        kind = typing.get_type_hints(one).get("type")
        for inner in (kind, *typing.get_args(kind)):
            found |= {name for name in typing.get_args(inner) if isinstance(name, str)}
    return found


def events_of(answer: Any) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_tables_hold_every_type_of_the_client() -> None:
    from openai.types.responses.response_input_item_param import ResponseInputItemParam
    from openai.types.responses.tool_param import ToolParam

    assert types_of(ToolParam) <= set(TOOLS)
    assert types_of(ResponseInputItemParam) <= set(ITEMS)


@pytest.mark.parametrize("kind", [*(k for k in TOOLS if TOOLS[k].how == "left out"), "brand_new"])
def test_tools_of_services_are_left_out_and_named(kind: str) -> None:
    app, _ = app_for()
    answer = ask(app, tools=[{"type": kind}, ADD])
    assert answer.status_code == 200
    assert answer.headers[IGNORED] == f"tools.{kind}"
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]
    refused = ask(app, tools=[{"type": kind}, ADD], tool_choice={"type": kind})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    listed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    assert ask(app, tools=[{"type": kind}, ADD], tool_choice=listed).status_code == 200
    strict, _ = app_for(strict_request_fields=True)
    assert ask(strict, tools=[{"type": kind}, ADD]).status_code == 400


@pytest.mark.parametrize("tool", [NOTE, SUMS])
def test_a_custom_call_comes_back_as_text(tool: dict[str, Any]) -> None:
    name = "note" if tool is NOTE else "sums__note"
    text = 'say "hi"\n☕'
    call = f"[call]{name} {json.dumps({'input': text})}[/call]"
    pieces = [call[at : at + 3] for at in range(0, len(call), 3)]
    app, engine = app_for(Script(pieces=pieces))
    whole = ask(app, tools=[tool]).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "note", text)
    assert item.get("namespace") == (None if tool is NOTE else "sums")
    assert whole["tools"] == ([NOTE] if tool is NOTE else [_repeated()])
    events = events_of(ask(app, tools=[tool], stream=True))
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done["input"] == text
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "kept"}
    ask(app, input=[{"role": "user", "content": "hi"}, item, result], tools=[tool])
    by_items = prompt_of(engine)
    ask(app, input=[result], previous_response_id=whole["id"], tools=[tool])
    assert prompt_of(engine) == by_items


def _repeated() -> dict[str, Any]:
    return SUMS | {"tools": [{"strict": None, **ADD}, NOTE]}


def test_a_function_of_a_namespace_carries_both_names() -> None:
    app, _ = app_for(Script(pieces=['[call]sums__add {"a": 1}[/call]']))
    (item,) = ask(app, tools=[SUMS, ADD]).json()["output"]
    assert (item["name"], item["namespace"]) == ("add", "sums")
    events = events_of(ask(app, tools=[SUMS], stream=True))
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert done["name"] == "add"
    (turn,) = messages_of([item])
    assert turn["tool_calls"][0]["function"]["name"] == "sums__add"


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"type": "namespace", "tools": [ADD]}, "tools[0].name"),
        ({"type": "namespace", "name": "a"}, "tools[0].tools"),
        ({"type": "namespace", "name": "a", "tools": [3]}, "tools[0].tools[0]"),
        ({"type": "namespace", "name": "a", "tools": [SUMS]}, "tools[0].tools[0].type"),
        ({"type": "custom"}, "tools[0].name"),
        ({"type": 3}, "tools[0].type"),
    ],
)
def test_tools_that_say_nothing_are_refused(tool: dict[str, Any], where: str) -> None:
    answer = ask(app_for()[0], tools=[tool])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, where)


def test_tools_among_the_items_are_offered() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [SUMS]}
    items = [more, {"role": "user", "content": "hi"}]
    app, engine = app_for(Script(pieces=['[call]sums__add {"a": 1}[/call]']))
    ask(app, tools=[SUMS])
    plain = prompt_of(engine)
    answer = ask(app, input=items)
    assert IGNORED not in answer.headers
    (item,) = answer.json()["output"]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "add", "sums")
    assert prompt_of(engine) == plain
    hosted = [{**more, "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]}]
    named = ask(app, input=[*hosted, items[1]]).headers[IGNORED]
    assert named == "tools.web_search, tools.mcp"


@pytest.mark.parametrize(
    ("tools", "where"),
    [
        (None, "input[0].tools"),
        ([3], "input[0].tools[0]"),
        ([{"type": "custom"}], "input[0].tools[0].name"),
    ],
)
def test_tools_among_the_items_are_checked_where_they_are(tools: Any, where: str) -> None:
    items = [{"type": "additional_tools", "tools": tools}, {"role": "user", "content": "hi"}]
    answer = ask(app_for()[0], input=items)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, where)


@pytest.mark.parametrize("kind", [k for k in ITEMS if ITEMS[k].how == "left out"])
def test_items_of_services_do_not_end_a_session(kind: str) -> None:
    app, engine = app_for()
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    ask(app, input=turns)
    plain = prompt_of(engine)
    answer = ask(app, input=[turns[0], {"type": kind, "id": "x", "status": "completed"}, turns[1]])
    assert answer.status_code == 200
    assert answer.headers[IGNORED] == f"input.{kind}"
    assert prompt_of(engine) == plain


@pytest.mark.parametrize("kind", [k for k in ITEMS if ITEMS[k].read_as == "call"])
def test_calls_with_a_form_of_their_own_are_calls(kind: str) -> None:
    action = {"type": "exec", "command": ["ls"]}
    call = {"type": kind, "id": "i", "call_id": "c", "status": "completed", "action": action}
    output = {
        "type": f"{kind.removesuffix('_call')}_call_output",
        "call_id": "c",
        "output": "a.txt",
    }
    if kind == "tool_search_call":
        output = {"type": "tool_search_output", "call_id": "c", "output": "a.txt"}
    turns = messages_of([call, output])
    function = turns[0]["tool_calls"][0]["function"]
    assert function == {"name": kind.removesuffix("_call"), "arguments": {"action": action}}
    assert turns[1] == {"role": "tool", "tool_call_id": "c", "content": "a.txt"}
    assert ask(app_for()[0], input=[call, output]).status_code == 200


def test_results_with_a_form_of_their_own() -> None:
    screen = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"}
    call = {"type": "computer_call", "call_id": "c", "action": {}}
    (_, turn) = messages_of(
        [call, {"type": "computer_call_output", "call_id": "c", "output": screen}]
    )
    assert turn["content"] == [screen | {"type": "input_image"}]
    told = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    (_, turn) = messages_of([call, {"type": "shell_call_output", "call_id": "c", "output": told}])
    assert json.loads(turn["content"]) == told
    (_, turn) = messages_of([call, {"type": "local_shell_call_output", "id": "c", "output": "x"}])
    assert turn["tool_call_id"] == "c"


@pytest.mark.parametrize("arguments", ['{"a": ', "null", '{"a": "\\d"}', None, {"a": 1}])
def test_arguments_of_a_cut_answer_do_not_end_a_session(arguments: Any) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "no"}
    assert ask(app_for()[0], input=[call, output]).status_code == 200


def test_references_name_stored_items_of_their_owner() -> None:
    app, engine = app_for(api_key=("one", "two"))
    one, two = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    made = send(app, "POST", "/v1/responses", {"input": "hi"}, **one).json()
    (item,) = [item for item in made["output"] if item["type"] == "message"]
    turn = {"role": "user", "content": "go on"}
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        body = {"input": [reference, turn]}
        assert send(app, "POST", "/v1/responses", body, **one).status_code == 200
        by_reference = prompt_of(engine)
        send(app, "POST", "/v1/responses", {"input": [item, turn]}, **one)
        assert prompt_of(engine) == by_reference
        refused = send(app, "POST", "/v1/responses", body, **two)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "input[0].id")


def test_unknown_items_are_refused() -> None:
    answer = ask(app_for()[0], input=[{"type": "mesage", "role": "user", "content": "x"}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].type")


@pytest.mark.parametrize("content", [None, [], [{"type": "reasoning_text", "text": ""}]])
def test_thinking_without_text_says_nothing(content: Any) -> None:
    item = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}
    item |= {} if content is None else {"content": content}
    user = {"role": "user", "content": "go on"}
    assert messages_of([user, item, user]) == [user, user]
    app, _ = app_for()
    for items in ([user, item], [user, item, user], [item, user]):
        assert ask(app, input=items).status_code == 200


@pytest.mark.parametrize("kind", ["tool_search_call", "tool_search_output", "function_call_output"])
def test_ids_of_calls_may_be_null(kind: str) -> None:
    item = {"type": kind, "id": None, "call_id": None, "output": "x", "arguments": {}, "tools": []}
    answer = ask(app_for()[0], input=[{"role": "user", "content": "hi"}, item])
    assert answer.status_code == 200, answer.text
    wrong = ask(app_for()[0], input=[{"role": "user", "content": "hi"}, item | {"call_id": 3}])
    assert wrong.json()["error"]["param"] == "input[1].call_id"
