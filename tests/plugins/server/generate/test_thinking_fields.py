"""Thinking in every dialect: counted by tokens, switched by the template, bounded, named."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import ThinkingBudget
from dovetail.interfaces.data.text import Markers
from dovetail.server.generate.events import CountedSession, SessionPlan
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.thinking import thinking_budget
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeTokenizer, Script
from support.serving import PARSERS, Thinks, app_for, chat, events_of, joined

MARKERS = Markers(start="<think>", end="</think>")
TEXT = "<think>a bc</think> d"


@pytest.mark.parametrize(("starts_inside", "text"), [(False, TEXT), (True, TEXT[7:])])
def test_tokens_of_reasoning_do_not_depend_on_the_cut(starts_inside: bool, text: str) -> None:
    """Tokens of several characters; those that begin within the reasoning count."""
    chance = random.Random(3)
    sizes = [2, 5, 3, 1, 6, 4] if not starts_inside else [3, 1, 6, 4]
    assert sum(sizes) == len(text)
    # "<t" "hink>" "a b" "c" "</thin" "k> d": the last begins within and straddles the end.
    for _ in range(50):
        counted = CountedSession(SessionPlan(reasoning=MARKERS, starts_inside=starts_inside))
        start = token = 0
        events = []
        while token < len(sizes):
            taken = sizes[token : token + chance.randint(1, 4)]
            piece = text[start : start + sum(taken)]
            events += counted.feed(piece, range(len(taken)), taken)
            start, token = start + sum(taken), token + len(taken)
        events += counted.finish()
        assert counted.num_reasoning_tokens == 4
        assert "".join(event.text for event in events) == "a bcd"


def test_text_that_no_token_brought_is_the_last_ones() -> None:
    counted = CountedSession(SessionPlan(reasoning=MARKERS, starts_inside=True))
    events = counted.feed("ab</think>c", (1, 2, 3), (1, 1))
    assert counted.num_reasoning_tokens == 3
    assert [event.text for event in events] == ["ab", "c"]


def test_usage_tells_them() -> None:
    app, _ = app_for(Script(pieces=["<think>abc</th", "ink>de"]))
    wanted = {"reasoning_tokens": len("abc</think>")}
    assert chat(app).json()["usage"]["completion_tokens_details"] == wanted
    hidden = chat(app, include_reasoning=False).json()
    assert hidden["usage"]["completion_tokens_details"] == wanted
    assert hidden["choices"][0]["message"]["reasoning"] is None
    events = events_of(chat(app, stream=True, stream_options={"include_usage": True}))
    assert events[-2]["usage"]["completion_tokens_details"] == wanted
    plain, _ = app_for(parsers=Parsers())
    assert chat(plain).json()["usage"]["completion_tokens_details"] is None


@pytest.mark.parametrize("name", ["both", "reasoning", "reasoning_content"])
def test_reasoning_field(name: str) -> None:
    if name != "both":
        pytest.importorskip("dovetail_plugins")
    app, _ = app_for(Script(pieces=["<think>ab", "c</think>d"]), reasoning_field=name)
    message = chat(app).json()["choices"][0]["message"]
    wanted = {"reasoning", "reasoning_content"} if name == "both" else {name}
    assert {key for key, value in message.items() if value == "abc"} == wanted
    chunks = [e["choices"][0]["delta"] for e in events_of(chat(app, stream=True)) if e != "[DONE]"]
    assert {key for delta in chunks for key in delta if key.startswith("reasoning")} == wanted


def tail_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])[-8:]


def test_effort_switches_the_template() -> None:
    app, engine = app_for()
    for fields, is_on in (
        ({}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
    ):
        answer = chat(app, **fields)
        assert (tail_of(engine) == "<think>\n") is is_on, fields
        assert "x-dovetail-ignored-fields" not in answer.headers


def test_an_effort_that_no_template_knows_is_reported() -> None:
    app, _ = app_for(chat_template="{{ messages[0].content }}")
    answer = chat(app, reasoning_effort="high", chat_template_kwargs={"thinking": True})
    told = answer.headers["x-dovetail-ignored-fields"]
    assert told == "chat_template_kwargs.thinking, reasoning_effort"


def test_a_budget_is_told_in_markers() -> None:
    opened = SessionPlan(reasoning=MARKERS, starts_inside=True)
    ids = tuple(map(ord, "</think>"))
    wanted = ThinkingBudget(tokens=5, end="</think>", end_ids=ids)
    assert thinking_budget(5, opened, FakeTokenizer()) == wanted
    free = thinking_budget(5, SessionPlan(reasoning=MARKERS), FakeTokenizer())
    assert free.start == "<think>"
    with pytest.raises(RequestError, match="reasoning parser"):
        thinking_budget(5, SessionPlan(), FakeTokenizer())


@pytest.mark.parametrize("parsers", [PARSERS, Parsers(reasoning=None)])
def test_a_budget_that_cannot_be_kept_is_refused(parsers: Parsers) -> None:
    app, _ = app_for(parsers=parsers)
    answer = chat(app, thinking_token_budget=5)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "thinking_token_budget"


def test_a_request_names_its_parsers() -> None:
    text = '<think>a</think>[call]add {"a": 1}[/call]'
    app, _ = app_for(Script(pieces=[text]), parsers=Parsers(reasoning=Thinks(None)))
    raw = chat(app, reasoning_parser="none").json()["choices"][0]["message"]
    assert raw["content"] == text
    assert raw["reasoning"] is None
    for field, name in (
        ("tool_parser", "no_such"),
        ("reasoning_parser", "os:path"),
        ("tool_parser", "support.serving:NameAndJson"),
        ("reasoning_parser", "/tmp/file.py:Parser"),
    ):
        answer = chat(app, **{field: name})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field


def test_parsers_of_a_request_are_used() -> None:
    pytest.importorskip("dovetail_plugins")
    text = '<think>a</think>b <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    app, _ = app_for(Script(pieces=[text]), parsers=Parsers())
    tools = [{"type": "function", "function": {"name": "add"}}]
    fields: dict[str, Any] = {"tool_parser": "hermes", "reasoning_parser": "qwen3", "tools": tools}
    choice = joined(events_of(chat(app, stream=True, **fields)))
    assert choice["message"]["reasoning_content"] == "a"
    assert choice["message"]["tool_calls"][0]["arguments"] == '{"a": 1}'
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"enable_thinking": False}, "False"),
        ({"enable_thinking": True}, "True"),
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"thinking": {"type": "enabled"}}, "True"),
        ({"thinking": {"type": "auto"}}, ""),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "True"),
    ],
)
def test_the_switches_of_other_servers(fields: dict[str, Any], thinks: str) -> None:
    app, engine = app_for(trust_request_chat_template=True)
    answer = chat(app, chat_template="hi {{ enable_thinking }}", **fields)
    assert answer.status_code == 200, answer.text
    assert "".join(map(chr, engine.asked[0][2]["prompt"])) == f"hi {thinks}"
    assert "x-dovetail-ignored-fields" not in answer.headers
    plain = chat(app, chat_template="hi", **fields)
    assert ("x-dovetail-ignored-fields" in plain.headers) is bool(thinks)
    assert chat(app, thinking={"type": "odd"}).json()["error"]["param"] == "thinking.type"
