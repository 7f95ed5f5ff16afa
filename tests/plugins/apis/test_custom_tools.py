"""Tools that take text instead of arguments, and tools that a service runs itself; by OpenAI's
client where it has types for them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.generate.body.chat import ChatRequest, ToolBody
from dovetail.server.generate.events.custom_calls import CustomInput
from dovetail.server.generate.rendering.messages import tool_dicts
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.tool_choice import chosen_tools, with_offered_tools
from dovetail_plugins.tool_parsers.hermes import Hermes
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import USER, app_for, client_of, send

jsonschema = pytest.importorskip("jsonschema")
openai = pytest.importorskip("openai")
NOTE = {"type": "custom", "custom": {"name": "note", "description": "writes"}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TEXT = 'naïve "q" \\ \n😀 {"a": 1}'
CALL = "[call]note " + json.dumps({"input": TEXT}) + "[/call]"
SURROGATE = re.compile("[\ud800-\udfff]")
IGNORED = "x-dovetail-ignored-fields"


def ask(app: Any, **fields: Any) -> Any:
    return send(app, "POST", "/v1/chat/completions", {"messages": USER, **fields})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


@pytest.mark.parametrize("seed", range(60))
def test_the_input_does_not_depend_on_cuts(seed: int) -> None:
    chance = random.Random(seed)
    chars = 'ab"\\\n\t/é☕😀\ud83d{}u0041'
    text = "".join(chance.choices(chars, k=chance.randint(0, 30)))
    whole = json.dumps({"input": text}, ensure_ascii="\ud83d" in text)
    reader = CustomInput()
    places = sorted(chance.randint(0, len(whole)) for _ in range(chance.randint(0, 9)))
    pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    assert "".join(map(reader.feed, pieces)) == SURROGATE.sub("\ufffd", json.loads(whole)["input"])


@pytest.mark.parametrize("given", ['{"text": "x"}', "[1]", '"x"', "plain", '{"inp'])
def test_other_arguments_are_the_input(given: str) -> None:
    reader = CustomInput()
    expected = "" if given == '{"inp' else given
    assert "".join(map(reader.feed, given)) == expected


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_a_call_comes_back_as_text(size: int) -> None:
    pieces = [CALL[at : at + size] for at in range(0, len(CALL), size)]
    app, _ = app_for(Script(pieces=pieces))
    wanted = {"model": "fake", "messages": USER, "tools": [NOTE, ADD]}

    async def work() -> None:
        async with client_of(app) as http:
            client = openai.AsyncOpenAI(api_key="k", base_url="http://test/v1", http_client=http)
            whole = await client.chat.completions.create(**wanted)
            call = whole.choices[0].message.tool_calls[0]
            assert (call.type, call.custom.name, call.custom.input) == ("custom", "note", TEXT)
            assert whole.choices[0].finish_reason == "tool_calls"
            told, name = "", ""
            async for chunk in await client.chat.completions.create(**wanted, stream=True):
                for piece in chunk.choices[0].delta.tool_calls or ():
                    custom = piece.model_extra["custom"]
                    told, name = told + custom.get("input", ""), name or custom["name"]
            assert (name, told) == ("note", TEXT)

    asyncio.run(work())


def test_a_history_with_a_custom_call() -> None:
    app, engine = app_for()
    call = {"id": "c", "type": "custom", "custom": {"name": "note", "input": 'a "b"'}}
    turns = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "kept"},
    ]
    assert ask(app, messages=turns, tools=[NOTE]).status_code == 200
    as_function = {"name": "note", "arguments": json.dumps({"input": 'a "b"'})}
    first = prompt_of(engine)
    turns[-2] = turns[-2] | {"tool_calls": [{"id": "c", "function": as_function}]}
    ask(app, messages=turns, tools=[NOTE])
    assert prompt_of(engine) == first


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "note"}},
        {"type": "custom", "name": "note"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOTE]}},
    ],
)
def test_a_custom_tool_can_be_demanded(choice: dict[str, Any]) -> None:
    given = {"messages": USER, "tools": [NOTE, ADD], "tool_choice": choice}
    body = with_offered_tools(ChatRequest.model_validate(given), FrontendConfig())
    assert [tool.function.name for tool in chosen_tools(body)] == ["note"]


@pytest.mark.parametrize("kind", ["web_search", "builtin_function", "brand_new_tool"])
def test_tools_of_services_are_left_out_and_named(kind: str) -> None:
    app, engine = app_for()
    given = {"type": kind, "search_context_size": "low"}
    answer = ask(app, tools=[given, ADD])
    assert answer.status_code == 200
    assert answer.headers[IGNORED] == f"tools.{kind}"
    with_it = prompt_of(engine)
    ask(app, tools=[ADD])
    assert prompt_of(engine) == with_it
    assert ask(app, tools=[given]).status_code == 200
    for choice in ("required", {"type": kind}):
        refused = ask(app, tools=[given], tool_choice=choice)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tool_choice"


def test_a_grammar_is_told_to_the_model_and_named() -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x+/"}}
    tool = {"type": "custom", "custom": {"name": "note", "format": form}}
    answer = ask(app_for()[0], tools=[tool])
    assert answer.headers[IGNORED] == "tools.format"
    (seen,) = tool_dicts([ToolBody.model_validate(tool)])
    assert "start: /x+/" in seen["function"]["description"]
    assert set(seen) == {"type", "function"}
    form["grammar"] = {"syntax": "regex", "definition": "[a-z]+|x"}
    (seen,) = tool_dicts([ToolBody.model_validate(tool)])
    schema = seen["function"]["parameters"]
    jsonschema.validate({"input": "abc"}, schema)
    for wrong in ({"input": "A"}, {"input": "xA"}, {}, {"input": "a", "b": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        ({"type": "functoin", "function": {"name": "f"}}, "tools[0]"),
        ({"type": "custom"}, "tools[0].function"),
        ({"type": "custom", "custom": {}}, "tools[0].custom.name"),
        ({"type": 5}, "tools[0].type"),
        ({"type": "function", "function": {"name": "a b"}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": " "}}, "tools[0].function.name"),
    ],
)
def test_tools_that_say_nothing_are_refused(tool: Any, where: str) -> None:
    answer = ask(app_for()[0], tools=[tool])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == where


@pytest.mark.parametrize(
    ("turn", "where"),
    [
        ({"role": "usr", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "system"}, "messages[0].content"),
        ({"role": "tool", "tool_call_id": "c"}, "messages[0].content"),
        ({"role": "assistant"}, "messages[0].content"),
    ],
)
def test_turns_that_say_nothing_are_refused(turn: dict[str, Any], where: str) -> None:
    answer = ask(app_for()[0], messages=[turn, *USER])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, where)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant", "refusal": "no"},
        {"role": "developer", "content": "x"},
        {"role": "function", "name": "f", "content": "x"},
    ],
)
def test_turns_that_say_something_are_taken(turn: dict[str, Any]) -> None:
    assert ask(app_for()[0], messages=[turn, *USER]).status_code == 200


def test_a_grammar_that_no_backend_holds_refuses_only_demands() -> None:
    app, _ = app_for(parsers=Parsers(tool=Hermes(None)))
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x+/"}}
    tool = {"type": "custom", "custom": {"name": "note", "format": form}}
    answer = ask(app, tools=[tool, ADD])
    assert (answer.status_code, answer.headers[IGNORED]) == (200, "tools.format")
    assert IGNORED not in ask(app, tools=[tool], tool_choice="none").headers
    assert ask(app, tools=[tool], tool_choice="required").status_code == 400


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ({"grammar": {"syntax": "lark", "definition": "start: x"}}, ".grammar.definition"),
        ({"syntax": "regex", "definition": "(a"}, ".definition"),
        ({"syntax": "peg", "definition": "a"}, ".syntax"),
        ({"grammar": {"syntax": "lark"}}, ".grammar.definition"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_faulty_grammar_has_a_pointer(form: dict[str, Any], where: str, choice: str) -> None:
    custom = {"name": "note", "format": {"type": "grammar", **form}}
    tools = [ADD, {"type": "web_search"}, {"type": "custom", "custom": custom}]
    answer = ask(app_for()[0], tools=tools, tool_choice=choice)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"tools[2].custom.format{where}"
    flat = {"type": "custom", "name": "note", "format": custom["format"]}
    space = {"type": "namespace", "name": "n", "tools": [flat]}
    body = {"input": "x", "tools": [{"type": "web_search"}, space]}
    answer = send(app_for()[0], "POST", "/v1/responses", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"tools[1].tools[0].format{where}"
