"""Answers that are nothing but JSON calls, without the tags of the parser's syntax."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Markers, Tool
from dovetail.server.generate.events import Collected, ContentDelta, Session, SessionPlan
from support.cut_texts import cuts

pytest.importorskip("dovetail_plugins")

JSON_SYNTAXES = (
    "deepseek_v3", "deepseek_v31", "granite", "granite-20b-fc", "hermes", "hunyuan_a13b",
    "internlm", "jamba", "kimi_k2", "lfm2", "llama3_json", "llama4_json", "minimax", "mistral",
    "phi4_mini_json", "xlam",
)  # fmt: skip
TOOLS = (Tool(name="find"), Tool(name="now"))
THINK = Markers(start="<think>", end="</think>")
ONE = '{"name": "find", "arguments": {"q": "caf\\u00e9 }"}}'
CALLS = [
    (ONE, [("find", {"q": "café }"})]),
    (f"\n {ONE}\n\n", [("find", {"q": "café }"})]),
    ('{"name": "now", "parameters": {}}', [("now", {})]),
    ('{"type": "function", "name": "now", "arguments": "{}"}', [("now", {})]),
    (f'{ONE}\n{{"name": "now", "arguments": {{}}}}', [("find", {"q": "café }"}), ("now", {})]),
    (f'[{ONE}, {{"name": "now", "arguments": {{}}}}]', [("find", {"q": "café }"}), ("now", {})]),
]
NO_CALLS = [
    f"{ONE} as you asked",
    f"So: {ONE}",
    '{"name": "other", "arguments": {}}',
    '{"name": "find"}',
    '{"name": "find", "arguments": {}, "id": 1} {"colour": "red"}',
    '{"name": "find", "arguments": {"q": 1',
    '{"name": "find", "arguments": [1]}',
    '[{"name": "find", "arguments": {}}, {"name": "other", "arguments": {}}]',
    '{"colour": "red", "arguments": {}}',
    "[1, 2]",
    "{}",
]


def made(name: str) -> Any:
    plugin = registry.load("tool_parser", name)
    return plugin(plugin.Options())


def answer(
    pieces: list[str], plan: SessionPlan, *, is_cut: bool = False
) -> tuple[str, str, list[tuple[str, str]]]:
    session, collected = Session(plan), Collected()
    for piece in pieces:
        collected.add(session.feed(piece))
    collected.add(session.finish(is_cut=is_cut))
    calls = [(call.name, call.arguments) for call in collected.calls]
    return collected.content, collected.reasoning, calls


def plan_of(name: str, **fields: Any) -> SessionPlan:
    return SessionPlan(tool_parser=made(name), **{"tools": TOOLS, "reads_bare": True, **fields})


@pytest.mark.parametrize("name", JSON_SYNTAXES)
def test_an_answer_of_calls_alone_is_calls(name: str) -> None:
    plan = plan_of(name, reasoning=THINK)
    for text, wanted in CALLS:
        for before, thought in (("", ""), ("<think>hm</think>\n\n", "hm")):
            whole = answer([before + text], plan)
            content, reasoning, calls = whole
            assert (content.strip(), reasoning) == ("", thought), text
            assert [(call, json.loads(arguments)) for call, arguments in calls] == wanted
            for pieces in cuts(before + text):
                assert answer(pieces, plan) == whole, pieces


@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "mistral", "granite"])
@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_something_else_is_content(name: str, text: str) -> None:
    plan = plan_of(name)
    for pieces in cuts(text):
        assert answer(pieces, plan) == (text, "", [])


def test_a_cut_answer_is_content() -> None:
    assert answer([ONE[:-1]], plan_of("hermes"), is_cut=True) == (ONE[:-1], "", [])


@pytest.mark.parametrize("fields", [{"reads_bare": False}, {"tools": ()}])
def test_only_tools_that_are_offered_to_parsers_that_are_not_strict(fields: dict[str, Any]) -> None:
    assert answer([ONE], plan_of("hermes", **fields)) == (ONE, "", [])


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "openai", "pythonic"])
def test_syntaxes_that_are_not_json_have_none(name: str) -> None:
    assert answer([ONE], plan_of(name)) == (ONE, "", [])


def test_tags_in_such_an_answer_are_still_read() -> None:
    """An answer that begins with JSON and goes on with a tagged call has that call."""
    text = f'{{"colour": "red"}} <tool_call>{ONE}</tool_call>'
    content, _, calls = answer([text], plan_of("hermes"))
    assert (content, [name for name, _ in calls]) == ('{"colour": "red"}', ["find"])


def test_an_answer_in_json_is_not_held_back() -> None:
    session = Session(plan_of("hermes"))
    events = session.feed('{"colour": "red", "sizes": [1, 2, 3')
    assert "".join(e.text for e in events if isinstance(e, ContentDelta)).startswith('{"colour"')
