"""What responses look like to OpenAI's client: every event and item of every kind of answer, the
fields that come back, sealed reasoning and files."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from dovetail.errors import RequestError, RequestFault
from dovetail_plugins.apis._sealed import opened
from dovetail_plugins.apis.responses.offered_tools import tools_of
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from dovetail_plugins.apis.responses.turns import messages_of
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.response_events import accumulated, adapter, ask, checked_events, whole, without_ids
from support.serving import app_for, send

openai = pytest.importorskip("openai")
IGNORED = "x-dovetail-ignored-fields"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
NOTE = {"type": "custom", "name": "note", "description": "writes"}
SUMS = {"type": "namespace", "name": "sums", "description": "sums", "tools": [ADD, NOTE]}
SHELL = {"type": "shell"}
PATCH = {"type": "apply_patch"}
TOOLS = [ADD, NOTE, SUMS, SHELL, PATCH, {"type": "local_shell"}]
EDIT = json.dumps({"operation": {"type": "create_file", "path": "a", "diff": "+1"}})
ANSWERS = {
    "text": "Hello, ☕ world",
    "reasoning": "<think>why</think>Because",
    "reasoning alone": "<think>why</think>",
    "function": 'I add. [call]add {"a": 1}[/call]',
    "two functions": '[call]add {"a": 1}[/call][call]sums__add {}[/call] done',
    "custom": '[call]note {"input": "say \\"hi\\"\\n"}[/call]',
    "custom of a namespace": '[call]sums__note {"input": "x"}[/call] and [call]add {}[/call]',
    "shell": '<think>look</think>[call]shell {"commands": ["ls", "pwd"]}[/call]',
    "patch": f"[call]apply_patch {EDIT}[/call] then [call]add {{}}[/call]",
    "local shell": '[call]local_shell {"command": ["ls"]}[/call]',
    "nothing": "",
}


def script(text: str, **fields: Any) -> Script:
    return Script(pieces=[text[at : at + 3] for at in range(0, len(text), 3)] or [""], **fields)


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_every_event_is_of_the_clients_types(
    name: str, finish_reason: str, include: list[str]
) -> None:
    app, _ = app_for(script(ANSWERS[name], finish_reason=finish_reason))
    fields = {"tools": TOOLS, "include": include}
    reply = whole(app, **fields)
    events = checked_events(app, **fields)
    assert without_ids(events[-1]["response"]) == without_ids(reply)
    assert reply["status"] == ("completed" if finish_reason == "stop" else "incomplete")
    for item in reply["output"]:
        adapter("ResponseOutputItem").validate_python(item)
    if finish_reason == "length":
        return  # the client's accumulator waits for response.completed
    found = [without_ids(item.to_dict()) for item in accumulated(app, **fields).output]
    for item, expected in zip(found, without_ids(reply["output"]), strict=True):
        assert [part.get("text") for part in item.get("content") or ()] == [
            part["text"] for part in expected.get("content", ())
        ]
        for field in ("type", "status", "arguments", "input", "action", "operation", "namespace"):
            assert item.get(field) == expected.get(field)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("at", range(1, 40, 4))
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_cut_anywhere_is_of_the_clients_types(name: str, at: int) -> None:
    cut = ANSWERS[name][:at]
    app, _ = app_for(script(cut, finish_reason="length"))
    events = checked_events(app, tools=TOOLS)
    assert events[-1]["type"] == "response.incomplete"
    assert without_ids(events[-1]["response"]) == without_ids(whole(app, tools=TOOLS))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_failure_is_of_the_clients_types(name: str) -> None:
    app, _ = app_for(script(ANSWERS[name], raises=RequestFault("NaN")))
    events = checked_events(app, tools=TOOLS)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"


def test_fields_come_back_and_refuse_nothing() -> None:
    fields = {
        "store": False,
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "prompt_cache_key": "key",
        "prompt_cache_retention": "24h",
        "safety_identifier": "safe",
        "user": "me",
        "truncation": "auto",
        "metadata": {"a": "b"},
        "top_logprobs": 0,
        "max_output_tokens": 9,
        "text": {"verbosity": "low", "format": {"type": "text"}},
    }
    others = {
        "service_tier": "flex",
        "client_metadata": {"x-codex-window-id": "1"},
        "stream_options": {"include_obfuscation": True},
        "prompt_cache_options": {"mode": "implicit"},
        "reasoning": {"effort": "xhigh", "summary": "auto"},
    }
    app, _ = app_for(strict_request_fields=True)
    reply = whole(app, **fields, **others)
    assert {name: reply[name] for name in fields} == fields
    assert reply["service_tier"] == "default"
    named = ask(app, **fields, **others).headers[IGNORED].split(", ")
    hints = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user")
    assert set(named) == {*hints, *others, "max_tool_calls", "text.verbosity"} - {"reasoning"} | {
        "reasoning.summary"
    }
    neutral = {"service_tier": "auto", "stream_options": {"include_obfuscation": False}}
    assert IGNORED not in ask(app, **neutral).headers
    events = checked_events(app, **fields, **others)
    assert {name: events[0]["response"][name] for name in fields} == fields


@pytest.mark.parametrize("value", [3, ["a"], {"a": 1}, "\ud800", "x" * 9999, True])
def test_hints_of_any_kind_refuse_nothing(value: Any) -> None:
    names = ("prompt_cache_key", "safety_identifier", "user", "service_tier", "client_metadata")
    app, _ = app_for()
    for name in (*names, "prompt_cache_options", "stream_options", "prompt_cache_retention"):
        assert ask(app, **{name: value}).status_code == 200, name


def test_one_call_where_calls_are_not_parallel() -> None:
    app, _ = app_for(script('[call]add {"a": 1}[/call][call]add {"a": 2}[/call]'))
    kinds = [i["type"] for i in whole(app, tools=TOOLS, parallel_tool_calls=False)["output"]]
    assert kinds.count("function_call") == 1
    kinds = [i["type"] for i in whole(app, tools=TOOLS)["output"]]
    assert kinds.count("function_call") == 2


@pytest.mark.parametrize("store", [True, False])
def test_sealed_reasoning_gives_the_model_its_thinking(store: bool) -> None:
    app, engine = app_for(script("<think>the ☕ plan</think>Hello"))
    reply = whole(app, store=store, include=["reasoning.encrypted_content"])
    item, message = reply["output"]
    assert opened(item["encrypted_content"], "reasoning") == "the ☕ plan"
    user = {"role": "user", "content": "go on"}
    whole(app, input=[user, item, message, user])
    with_text = prompt_of(engine)
    assert "the ☕ plan" in with_text
    for bare in (
        {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]},
        {**item, "content": None, "summary": []},
        {**item, "content": [], "id": None},
    ):
        whole(app, input=[user, bare, message, user])
        assert prompt_of(engine) == with_text
    assert "encrypted_content" not in whole(app)["output"][0]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_reasoning_that_is_not_ours_is_named(place: int) -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": "x"}] * place
    items.append({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABnot-ours"})
    answer = ask(app_for()[0], input=items)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, f"input[{place}].encrypted_content")
    assert error["code"] == "invalid_encrypted_content"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


TEXT = '# Notes\n"quoted" ☕ <b>'
FILES = [
    (encoded(TEXT.encode()), "notes.md"),
    ("data:text/markdown;base64," + encoded(TEXT.encode()), "notes.md"),
    ("data:text/plain;charset=utf-8;base64," + encoded(TEXT.encode("utf-8-sig")), "notes.md"),
    ("data:application/octet-stream;base64," + encoded(TEXT.encode("utf-16")), "notes.md"),
    ("data:text/plain,%23%20Notes%0A%22quoted%22%20%E2%98%95%20%3Cb%3E", "notes.md"),
    (encoded(TEXT.replace("\n", "\r\n").encode()), "notes.md"),
]


@pytest.mark.parametrize(("data", "name"), FILES)
def test_text_files_are_read(data: str, name: str) -> None:
    part = {"type": "input_file", "file_data": data, "filename": name}
    asked = [{"type": "input_text", "text": "sum up"}, part]
    (turn,) = messages_of([{"role": "user", "content": asked}])
    assert turn["content"] == f'sum up\n<file name="notes.md">\n{TEXT}\n</file>'
    result = {"type": "function_call_output", "call_id": "c", "output": [part]}
    (turn,) = messages_of([result])
    assert TEXT in turn["content"]
    app, engine = app_for()
    whole(app, input=[{"role": "user", "content": asked}])
    assert TEXT in prompt_of(engine)


@pytest.mark.parametrize("name", ["a.json", "a.csv", "main.rs", "Makefile", "", None, "a.pdf"])
def test_a_file_is_text_by_its_bytes(name: str | None) -> None:
    part = {"type": "input_file", "file_data": encoded(b'{"a": 1}'), "filename": name}
    (turn,) = messages_of([{"role": "user", "content": [part]}])
    assert turn["content"] == f'<file name="{name or "file"}">\n{{"a": 1}}\n</file>'


@pytest.mark.parametrize(
    ("fields", "where", "says"),
    [
        ({"file_id": "file-1"}, "file_id", "not kept"),
        ({"file_url": "https://example.com/a.txt"}, "file_url", "not fetched"),
        ({"file_data": encoded(b"%PDF-1.7 text")}, "file_data", "PDF"),
        ({"file_data": "data:application/pdf;base64," + encoded(b"%PDF-1")}, "file_data", "PDF"),
        ({"file_data": encoded(b"PK\x03\x04")}, "file_data", "not a text file"),
        ({"file_data": encoded(b"\x89PNG\r\n")}, "file_data", "not a text file"),
        ({"file_data": encoded(b"\xff\xfea")}, "file_data", "not a text file"),
        ({"file_data": "a b$"}, "file_data", "not base64"),
        ({"file_data": "data:text/plain"}, "file_data", "without data"),
        ({"file_data": 3}, "file_data", "must be text"),
        ({}, "file_data", "must be text"),
        ({"file_data": encoded(b"a"), "filename": 3}, "filename", "must be text"),
    ],
)
def test_other_files_are_refused_with_a_reason(
    fields: dict[str, Any], where: str, says: str
) -> None:
    content = [{"type": "input_text", "text": "x"}, {"type": "input_file", **fields}]
    answer = ask(app_for()[0], input=[{"role": "user", "content": content}])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, f"input[0].content[1].{where}")
    assert says in error["message"]


HOSTED = ({"type": "web_search"}, {"type": "file_search"}, {"type": "computer_use_preview"})


@pytest.mark.parametrize("hosted", HOSTED, ids=lambda tool: tool["type"])
def test_a_namespace_may_hold_what_is_left_out(hosted: dict[str, Any]) -> None:
    kind = hosted["type"]
    app, _ = app_for()
    space = SUMS | {"tools": [hosted, ADD]}
    answer = ask(app, tools=[space])
    assert (answer.status_code, answer.headers[IGNORED]) == (200, f"tools.{kind}")
    (echoed,) = answer.json()["tools"]
    assert [tool["name"] for tool in echoed["tools"]] == ["add"]
    only = ask(app, tools=[SUMS | {"tools": [hosted]}])
    assert (only.status_code, only.json()["output"][0]["type"]) == (200, "message")


def test_a_choice_among_allowed_tools() -> None:
    app, _ = app_for()
    tools = [*TOOLS, *HOSTED]
    lists: list[list[Any]] = [
        [*HOSTED, ADD],
        [{"type": "namespace", "name": "sums"}],
        [{"type": "function", "name": "add", "namespace": "sums"}, SHELL],
        [PATCH, {"type": "local_shell"}, {"type": "custom", "name": "note"}],
        list(HOSTED),
    ]
    choice: dict[str, Any]
    for entries in lists:
        choice = {"type": "allowed_tools", "mode": "auto", "tools": entries}
        answer = ask(app, tools=tools, tool_choice=choice)
        assert answer.status_code == 200, answer.text
    for choice in (
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": list(HOSTED)},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "x"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [3]},
    ):
        answer = ask(app, tools=tools, tool_choice=choice)
        assert answer.status_code == 400, choice
        assert answer.json()["error"]["param"].startswith("tool_choice")
    assert ask(app, tools=list(HOSTED), tool_choice="required").status_code == 400


@pytest.mark.parametrize(
    ("tools", "where"),
    [
        ([{"type": "function", "name": "sums__add"}, SUMS], "tools[1].tools[0]"),
        ([SUMS, {"type": "custom", "name": "sums__note"}], "tools[1]"),
        ([{"type": "custom"}], "tools[0].name"),
        ([{"type": "custom", "name": ""}], "tools[0].name"),
        ([SUMS | {"tools": [{"type": "custom"}]}], "tools[0].tools[0].name"),
        ([{"type": "namespace", "name": None, "tools": []}], "tools[0].name"),
    ],
)
def test_tools_that_clash_or_have_no_name(tools: list[Any], where: str) -> None:
    app, _ = app_for()
    answer = ask(app, tools=tools)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, where)
    assert ask(app, tools=TOOLS).status_code == 200


def test_a_tool_of_a_server_clashes_with_one_of_a_namespace() -> None:
    body = ResponsesRequest.model_validate({"input": "hi", "tools": [SUMS]})
    for name in ("sums__add", "sums__note"):
        with pytest.raises(RequestError, match=f'two tools "{name}"'):
            tools_of(body, [{"type": "function", "name": name}])
    assert len(tools_of(body, [{"type": "function", "name": "sums__sub"}])) == 3


@pytest.mark.parametrize(
    ("item", "where"),
    [
        ({"type": "telepathy"}, "type"),
        ({"type": 3}, "type"),
        ({"type": "message", "role": "user", "content": [{"type": "smell"}]}, "content[0]"),
        ({"type": "shell_call_output", "call_id": 3, "output": "x"}, "call_id"),
        ({"type": "function_call", "call_id": "c", "name": 3}, "name"),
    ],
)
def test_items_that_nobody_knows_are_named(item: dict[str, Any], where: str) -> None:
    answer = ask(app_for()[0], input=[{"role": "user", "content": "x"}, item])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"input[1].{where}")


def test_pictures_in_results_need_a_model_that_sees() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    result = {"type": "function_call_output", "call_id": "c", "output": [picture]}
    (turn,) = messages_of([result])
    assert turn == {"role": "tool", "tool_call_id": "c", "content": [picture]}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    user = {"role": "user", "content": "x"}
    for items, place in (
        ([user, call, result], "input[2].output[0]"),
        ([user, call, call | {"call_id": "d"}, result, user], "input[3].output[0]"),
        ([user, {"role": "user", "content": [picture]}], "input[1].content[0]"),
    ):
        for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
            for instructions in (None, "be brief"):
                body = {"input": items, "instructions": instructions}
                answer = send(app_for()[0], "POST", path, body)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, place)
