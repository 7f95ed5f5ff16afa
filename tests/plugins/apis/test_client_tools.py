"""local_shell, shell and apply_patch: what the model is offered, and the items of its calls.

Checked with the types of OpenAI's client.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.generate.tools.tool_choice import chosen_tools, with_offered_tools
from dovetail_plugins.apis.responses.client_tools import CLIENT_TOOLS
from dovetail_plugins.apis.responses.input import chat_of
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from dovetail_plugins.apis.responses.turns import messages_of
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.response_events import accumulated, ask, checked_events, whole, without_ids
from support.serving import app_for

pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")
IGNORED = "x-dovetail-ignored-fields"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
PATCH = {"type": "update_file", "path": "a ☕.py", "diff": '@@\n-x = "1"\n+x = 2\n'}
NO_LIMITS = {"timeout_ms": None, "max_output_length": None}
PLAIN: dict[str, Any] = {"working_directory": None, "env": {}, "timeout_ms": None, "user": None}
CALLS: list[tuple[str, Any, Any]] = [
    (
        "shell",
        {"commands": ["ls", "echo 'ü'"]},
        {"commands": ["ls", "echo 'ü'"], **NO_LIMITS},
    ),
    (
        "shell",
        {"commands": ["x"], "timeout_ms": 5, "max_output_length": 9, "why": "so"},
        {"commands": ["x"], "timeout_ms": 5, "max_output_length": 9},
    ),
    ("local_shell", {"command": ["ls"]}, {"type": "exec", "command": ["ls"], **PLAIN}),
    (
        "local_shell",
        {"command": ["bash", "-lc", "ls"], "env": {"A": "b"}, "user": "me", "timeout_ms": 1},
        {
            **PLAIN,
            "type": "exec",
            "command": ["bash", "-lc", "ls"],
            "env": {"A": "b"},
            "user": "me",
            "timeout_ms": 1,
        },
    ),
    ("apply_patch", {"operation": PATCH}, PATCH),
    ("apply_patch", PATCH, PATCH),
    (
        "apply_patch",
        {"operation": {"type": "create_file", "path": "b", "diff": "+1"}},
        {"type": "create_file", "path": "b", "diff": "+1"},
    ),
    (
        "apply_patch",
        {"operation": {"type": "delete_file", "path": "b", "diff": None}},
        {"type": "delete_file", "path": "b"},
    ),
]
BROKEN: list[tuple[str, Any]] = [
    ("shell", {"commands": "ls"}),
    ("shell", {"commands": [1]}),
    ("shell", {"commands": ["ls"], "timeout_ms": "soon"}),
    ("shell", {}),
    ("local_shell", {"command": "ls"}),
    ("local_shell", {"command": ["ls"], "env": {"A": 1}}),
    ("apply_patch", {"operation": "delete everything"}),
    ("apply_patch", {"operation": {"type": "update_file", "path": "a"}}),
    ("apply_patch", {"operation": {"type": "move_file", "path": "a", "diff": ""}}),
    ("apply_patch", {"operation": {"type": "delete_file"}}),
]


def script(name: str, arguments: Any, size: int = 7) -> Script:
    text = f"<think>so</think>I look. [call]{name} {json.dumps(arguments)}[/call]"
    return Script(pieces=[text[at : at + size] for at in range(0, len(text), size)])


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


@pytest.mark.parametrize(("name", "arguments", "value"), CALLS)
def test_a_call_comes_back_as_its_own_item(name: str, arguments: Any, value: Any) -> None:
    tool = CLIENT_TOOLS[name]
    app, engine = app_for(script(name, arguments))
    reply = whole(app, tools=[{"type": name}, ADD])
    item = reply["output"][-1]
    assert item["type"] == f"{name}_call"
    assert item["id"].startswith(f"{tool.prefix}_")
    assert item["status"] == "completed"
    assert item[tool.field] == value
    assert reply["tools"][0] == {"type": name}
    assert engine.asked[-1]
    events = checked_events(app, tools=[{"type": name}, ADD])
    assert without_ids(events[-1]["response"]) == without_ids(reply)
    (*_, last) = accumulated(app, tools=[{"type": name}]).output
    assert last.to_dict()[tool.field] == value


@pytest.mark.parametrize(("name", "arguments", "value"), CALLS)
def test_an_item_sent_back_is_the_call_that_the_model_made(
    name: str, arguments: Any, value: Any
) -> None:
    tool = CLIENT_TOOLS[name]
    item = {"type": f"{name}_call", "id": "i", "call_id": "c", "status": "completed"}
    item[tool.field] = value
    (turn,) = messages_of([item | {"environment": {"type": "local"}}])
    (call,) = turn["tool_calls"]
    assert call["function"]["name"] == name
    jsonschema.validate(call["function"]["arguments"], tool.parameters)
    assert tool.value(call["function"]["arguments"]) == value


def test_the_commands_of_a_shell_have_events() -> None:
    events = checked_events(
        app_for(script("shell", {"commands": ["a", "b"]}))[0], tools=[{"type": "shell"}]
    )
    found = [
        (event["type"].removeprefix("response.shell_call_command."), event["command_index"])
        for event in events
        if "shell_call_command" in event["type"]
    ]
    assert found == [(kind, n) for n in (0, 1) for kind in ("added", "delta", "done")]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (added[-1]["status"], added[-1]["action"]["commands"]) == ("in_progress", [])


@pytest.mark.parametrize(("name", "arguments"), BROKEN)
def test_a_call_that_does_not_fit_cannot_be_made(name: str, arguments: Any) -> None:
    app, _ = app_for(script(name, arguments))
    item = whole(app, tools=[{"type": name}])["output"][-1]
    assert item["status"] == ("in_progress" if name == "apply_patch" else "incomplete")
    tool = CLIENT_TOOLS[name]
    assert item[tool.field] == {**tool.constants, **tool.empty}
    checked_events(app, tools=[{"type": name}])


@pytest.mark.parametrize("name", CLIENT_TOOLS)
def test_a_call_cut_short_is_incomplete(name: str) -> None:
    cut = Script(pieces=[f"[call]{name} ", '{"commands": ["rm -r'], finish_reason="length")
    reply = whole(app_for(cut)[0], tools=[{"type": name}])
    assert reply["status"] == "incomplete"
    for item in reply["output"]:
        assert item["status"] != "completed"
    events = checked_events(app_for(cut)[0], tools=[{"type": name}])
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("name", CLIENT_TOOLS)
def test_the_schema_describes_the_items(name: str) -> None:
    body = ResponsesRequest.model_validate({"input": "hi", "tools": [{"type": name}]})
    tools = chat_of(body, messages_of("hi")).tools
    assert tools is not None
    schema = tools[0].function.parameters
    assert schema is not None
    jsonschema.Draft202012Validator.check_schema(schema)
    for kind, arguments, _ in CALLS:
        if kind == name and arguments is not PATCH and "why" not in arguments:
            given = json.loads(json.dumps(arguments).replace(', "diff": null', ""))
            jsonschema.validate(given, schema)
    for kind, arguments in BROKEN:
        if kind == name:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("name", CLIENT_TOOLS)
def test_a_choice_may_name_them(name: str) -> None:
    tools = [{"type": name}, ADD]
    one = {"type": name}
    listed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    for choice in (one, listed):
        body = {"input": "hi", "tools": tools, "tool_choice": choice}
        made = chat_of(ResponsesRequest.model_validate(body), messages_of("hi"))
        offered = with_offered_tools(made, FrontendConfig())
        assert [tool.function.name for tool in chosen_tools(offered)] == [name]
    app, _ = app_for(script(name, {}))
    auto = listed | {"mode": "auto"}
    assert whole(app, tools=tools, tool_choice=auto)["tool_choice"] == auto
    refused = ask(app, tools=[ADD], tool_choice=one)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_a_shell_in_a_container_is_left_out() -> None:
    app, _ = app_for(script("shell", {"commands": ["ls"]}))
    local = {"type": "shell", "environment": {"type": "local"}}
    assert whole(app, tools=[local])["tools"] == [local]
    for kind in ("container_auto", "container_reference"):
        hosted = {"type": "shell", "environment": {"type": kind}}
        answer = ask(app, tools=[hosted, ADD])
        assert answer.headers[IGNORED] == "tools.shell"
        assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]
        refused = ask(app, tools=[hosted, ADD], tool_choice={"type": "shell"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
        listed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}
        assert ask(app, tools=[hosted, ADD], tool_choice=listed).status_code == 200


@pytest.mark.parametrize("name", CLIENT_TOOLS)
def test_a_function_of_the_same_name_clashes(name: str) -> None:
    for other in ({"type": "function", "name": name}, {"type": "custom", "name": name}):
        answer = ask(app_for()[0], tools=[{"type": name}, other])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[1]")
        only, _ = app_for(script(name, {"input": "x"}))
        kinds = [item["type"] for item in whole(only, tools=[other])["output"]]
        assert kinds[-1] in ("function_call", "custom_tool_call")


def test_skills_of_a_shell_are_in_its_description() -> None:
    skill = {"name": "csv", "description": "reads tables", "path": "/skills/csv"}
    local = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    for tool, is_there in ((local, True), ({"type": "shell"}, False)):
        body = ResponsesRequest.model_validate({"input": "hi", "tools": [tool]})
        tools = chat_of(body, messages_of("hi")).tools
        assert tools is not None
        text = tools[0].function.description or ""
        assert ("csv: reads tables (/skills/csv)" in text) is is_there
    odd = {"type": "shell", "environment": {"type": "local", "skills": ["x", {}]}}
    assert ask(app_for()[0], tools=[odd]).status_code == 200


def test_a_result_may_name_a_call_by_its_item() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    call = {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": action}
    for name in ("lsh_1", "call_1"):
        result = {"type": "local_shell_call_output", "id": name, "output": "a"}
        assert messages_of([call, result])[1]["tool_call_id"] == "call_1"


def test_results_reach_the_model() -> None:
    call = {"type": "apply_patch_call", "call_id": "c", "operation": PATCH}
    failed = {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}
    for result, text in (
        (failed | {"output": "no such file"}, "failed: no such file"),
        (failed, "failed"),
        (failed | {"status": "completed", "output": None}, "completed"),
        (failed | {"status": "completed", "output": "done"}, "done"),
    ):
        assert messages_of([call, result])[1]["content"] == text
