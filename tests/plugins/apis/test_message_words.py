"""Tools and blocks of messages: every type that Anthropic's client knows, and its meaning here."""

from __future__ import annotations

import json
import re
import typing
from typing import Any

import pydantic
import pytest

from dovetail_plugins.apis.messages.protocol import CountRequest
from dovetail_plugins.apis.messages.tools import offered_tools
from dovetail_plugins.apis.messages.words import BLOCKS, TOOLS, tool_word
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import USER, app_for, send

pytest.importorskip("anthropic")
IGNORED = "x-dovetail-ignored-fields"
ADD = {"name": "add", "input_schema": {"type": "object"}}
LEFT = [kind for kind in BLOCKS if BLOCKS[kind].how == "left out"]


def ask(app: Any, content: Any, **fields: Any) -> Any:
    turns = content if content and "role" in content[0] else [{"role": "user", "content": content}]
    return send(app, "POST", "/v1/messages", {"messages": turns, "max_tokens": 9, **fields})


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def types_of(union: Any) -> set[str]:
    found: set[str] = set()
    for one in typing.get_args(union):
        if not isinstance(one, type):
            found |= types_of(typing.get_args(one)[0])  # a union within
            continue
        if issubclass(one, pydantic.BaseModel):
            found |= set(typing.get_args(one.model_fields["type"].annotation))
            continue
        kind = typing.get_type_hints(one).get("type")
        for inner in (kind, *typing.get_args(kind)):
            found |= {name for name in typing.get_args(inner) if isinstance(name, str)}
    return found


def test_the_tables_hold_every_type_of_the_client() -> None:
    from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam
    from anthropic.types.beta.beta_tool_result_block_param import Content
    from anthropic.types.beta.beta_tool_union_param import BetaToolUnionParam
    from anthropic.types.content_block_param import ContentBlockParam
    from anthropic.types.tool_union_param import ToolUnionParam

    for blocks in (ContentBlockParam, BetaContentBlockParam, Content):
        assert types_of(blocks) <= set(BLOCKS)
    for tools in (ToolUnionParam, BetaToolUnionParam):
        assert {tool_word(kind) for kind in types_of(tools)} <= set(TOOLS)


CLIENT_TOOLS = {
    "bash_20250124": ("bash", {"command": "ls"}),
    "text_editor_20241022": ("str_replace_editor", {"command": "undo_edit", "path": "a"}),
    "text_editor_20250124": ("str_replace_editor", {"command": "view", "path": "a"}),
    "text_editor_20250728": (
        "str_replace_based_edit_tool",
        {"command": "insert", "path": "a", "insert_line": 0, "insert_text": "b"},
    ),
    "memory_20250818": ("memory", {"command": "rename", "old_path": "a", "new_path": "b"}),
    "computer_20241022": ("computer", {"action": "left_click", "coordinate": [1, 2]}),
    "computer_20250124": (
        "computer",
        {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "up", "scroll_amount": 3},
    ),
    "computer_20251124": ("computer", {"action": "zoom", "region": [0, 0, 9, 9]}),
}


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_tools_that_the_client_runs_are_functions(kind: str) -> None:
    import jsonschema

    name, given = CLIENT_TOOLS[kind]
    tool = {"type": kind, "name": name, "enable_zoom": kind.endswith("20251124")}
    call = f"[call]{name} {json.dumps(given)}[/call]"
    app, engine = app_for(Script(pieces=[call]))
    answer = ask(app, "hi", tools=[tool])
    assert (answer.status_code, IGNORED in answer.headers) == (200, False)
    (block,) = answer.json()["content"]
    assert (block["name"], block["input"]) == (name, given)
    (function,) = offered_tools(CountRequest.model_validate({"messages": USER, "tools": [tool]}))
    schema = function["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(given, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({next(iter(given)): 3}, schema)
    assert prompt_of(engine) == "<|im_start|>user\nhi<|im_end|>\n[1 tools]<|im_start|>assistant\n"
    (unnamed,) = offered_tools(CountRequest(messages=USER, tools=[{"type": kind}]))
    assert unnamed["function"]["name"] == name


def test_a_screen_has_a_size() -> None:
    sizes = {"display_width_px": 1024, "display_height_px": 768}
    tool = {"type": "computer_20250124", "name": "computer", **sizes}
    (made,) = offered_tools(CountRequest(messages=USER, tools=[tool]))
    assert "1024 x 768" in made["function"]["description"]


@pytest.mark.parametrize(
    "kind", ["web_search_20250305", "code_execution_20250825", "mcp_toolset", "brand_new"]
)
def test_tools_of_services_are_left_out_and_named(kind: str) -> None:
    app, engine = app_for()
    ask(app, "hi", tools=[ADD])
    plain = prompt_of(engine)
    answer = ask(app, "hi", tools=[{"type": kind}, ADD])
    assert (answer.status_code, answer.headers[IGNORED]) == (200, f"tools.{kind}")
    assert prompt_of(engine) == plain
    named = {"type": "tool", "name": "web_search"}
    given = [{"type": kind, "name": "web_search"}, ADD]
    assert ask(app, "hi", tools=given, tool_choice=named).status_code == 400


@pytest.mark.parametrize("name", ["a b", " ", None])
def test_names_with_blanks_are_refused(name: str | None) -> None:
    answer = ask(app_for()[0], "hi", tools=[ADD, {"name": name, "input_schema": {}}])
    assert answer.status_code == 400
    assert "tools[1].name" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {
                "type": "document",
                "title": "Sky",
                "source": {"type": "text", "media_type": "text/plain", "data": "green"},
            },
            "Sky\ngreen",
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "green"}]},
            },
            "green",
        ),
        (
            {
                "type": "search_result",
                "source": "https://a",
                "title": "Sky",
                "content": [{"type": "text", "text": "green"}],
            },
            "Sky\nhttps://a\ngreen",
        ),
        ({"type": "compaction", "content": "so far"}, "so far"),
    ],
)
def test_documents_and_results_are_text(block: dict[str, Any], text: str) -> None:
    app, engine = app_for()
    for content in ([block], [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]):
        assert ask(app, content).status_code == 200
        assert text in prompt_of(engine)


@pytest.mark.parametrize(
    "source",
    [{"type": "base64", "media_type": "application/pdf", "data": "AA"}, {}, "x",
     {"type": "content", "content": [3]}, {"type": "url", "url": "https://a"}],
)  # fmt: skip
def test_documents_that_are_no_text_are_refused(source: Any) -> None:
    answer = ask(app_for()[0], [{"type": "document", "source": source}])
    assert answer.status_code == 400
    assert "messages[0].content[0].source" in answer.json()["error"]["message"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("content", [[], {"type": "error", "error_code": "unavailable"}, None])
def test_blocks_of_services_do_not_end_a_session(kind: str, content: Any) -> None:
    app, engine = app_for()
    said = {"type": "text", "text": "none"}
    turns = [{"role": "user", "content": "news?"}, {"role": "assistant", "content": [said]}]
    last = {"role": "user", "content": "ok"}
    ask(app, [*turns, last])
    plain = prompt_of(engine)
    block = {"type": kind, "id": "s", "tool_use_id": "s", "name": "x", "content": content}
    turns[1] = {"role": "assistant", "content": [block, said]}
    answer = ask(app, [*turns, last])
    assert (answer.status_code, prompt_of(engine)) == (200, plain)
    assert f"messages.content.{kind}" in answer.headers[IGNORED]


@pytest.mark.parametrize("given", ['{"a": ', [1], None, "null", {"a": 1}])
def test_inputs_of_a_cut_answer_do_not_end_a_session(given: Any) -> None:
    call = {"type": "tool_use", "id": "t", "name": "add", "input": given}
    turns = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "no"}]},
    ]  # fmt: skip
    assert ask(app_for()[0], turns).status_code == 200


def test_a_prompt_that_does_not_fit_is_told_in_anthropics_words() -> None:
    answer = ask(app_for()[0], "much " * 5000)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert re.match(r"prompt is too long: \d+ tokens > 4096 maximum", message), message
