"""Answers that parsers read themselves: one token at a time, in two stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.answer_reader import AnswerQuery, Reading, ReadingPlan
from dovetail.interfaces.data.text import Markers, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.events import Collected, CountedSession, SessionPlan
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.tool_choice import (
    answer_constraint,
    kept_special_ids,
    session_plan,
)
from dovetail_testing.fakes.async_engine import FakeFacts, Script
from support.serving import TOOLS, USER, NameAndJson, Thinks, app_for, chat

DOT, BAR = ord("."), ord("|")


class DotCalls:
    """After a "." every character is a call's argument, until the next; ids alone are looked at."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.seen: list[tuple[str, int]] = []

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return what is new."""
        self.seen += [(text, token_id) for token_id in token_ids]
        if DOT in token_ids:
            self.calls = [*self.calls, ToolCall(name="f", arguments="")]
            return Reading(calls=self.calls)
        if not self.calls:
            return Reading(content=text)
        last = self.calls[-1]
        more = ToolCall(name="f", arguments=last.arguments + text)
        self.calls = [*self.calls[:-1], more]
        return Reading(calls=self.calls)

    def finish(self, *, is_cut: bool) -> Reading:
        """Return that nothing was held back."""
        return Reading()


class BarThoughts:
    """All is reasoning up to the first "|"."""

    def __init__(self) -> None:
        self.is_over = False

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return what is new."""
        if self.is_over:
            return Reading(content=text)
        self.is_over = BAR in token_ids
        return Reading() if self.is_over else Reading(reasoning=text)

    def finish(self, *, is_cut: bool) -> Reading:
        """Return that nothing was held back."""
        return Reading()


class Dots(ToolParser):
    """Reads by DotCalls."""

    info = Info(summary="test parser: reads itself")
    markers: ClassVar[tuple[Markers, ...]] = ()

    def parse(self, body: str, tools: Any) -> list[ToolCall]:
        """Return nothing: it reads itself."""
        return []

    def reads(self, query: AnswerQuery) -> ReadingPlan:
        """Return the reader of every answer; with tools it wants to see special tokens."""
        return ReadingPlan(begin=DotCalls, shows_special_tokens=bool(query.request()["tools"]))

    def for_forced_calls(self) -> ToolParser:
        """Return a parser with a syntax of its own."""
        return NameAndJson(None)


class Bars(ReasoningParser):
    """Reads by BarThoughts; nobody knows its markers."""

    info = Info(summary="test parser: reads itself")
    markers: ClassVar[Markers] = Markers(start="", end="")

    def reads(self, query: AnswerQuery) -> ReadingPlan:
        """Return the reader of every answer."""
        return ReadingPlan(begin=BarThoughts)


DOTS = ReadingPlan(begin=DotCalls)
BARS = ReadingPlan(begin=BarThoughts)
LONG = '{"a": "' + "x" * 600 + '"}'


def read(plan: SessionPlan, text: str, chance: random.Random | None, **end: Any) -> Any:
    session, answer, at = CountedSession(plan), Collected(), 0
    while at < len(text):
        upto = len(text) if chance is None else at + chance.randint(1, 6)
        piece = text[at:upto]
        answer.add(session.feed(piece, [ord(c) for c in piece], [1] * len(piece)))
        at = upto
    answer.add(session.finish(**end))
    calls = [(call.name, call.arguments) for call in answer.calls]
    return answer.reasoning, answer.content, calls


@pytest.mark.parametrize(
    ("plan", "text", "wanted"),
    [
        (SessionPlan(tool_reading=DOTS), "ab", ("", "ab", [])),
        (SessionPlan(tool_reading=DOTS), 'ab.{"x": 1}', ("", "ab", [("f", '{"x": 1}')])),
        (SessionPlan(tool_reading=DOTS), f"ab.{LONG}", ("", "ab", [("f", LONG)])),
        (
            SessionPlan(tool_reading=DOTS, max_calls=1),
            "ab.{}.{}",
            ("", "ab", [("f", "{}")]),
        ),
        (SessionPlan(tool_reading=DOTS, stops=("b",)), "ab.{}", ("", "a", [])),
        (SessionPlan(tool_reading=DOTS, stops=("bx",)), "ab.{}", ("", "ab", [("f", "{}")])),
        (SessionPlan(reasoning_reading=BARS), "ab|cd", ("ab", "cd", [])),
        (
            SessionPlan(reasoning_reading=BARS, tool_reading=DOTS),
            "a.b|cd.{}",
            ("a.b", "cd", [("f", "{}")]),
        ),
        (
            SessionPlan(reasoning_reading=BARS, tool_parser=NameAndJson(None)),
            "[call]|c [call]f {}[/call]",
            ("[call]", "c", [("f", "{}")]),
        ),
        (
            SessionPlan(reasoning=Thinks.markers, tool_reading=DOTS),
            "<think>a.b</think>cd.{}",
            ("a.b", "cd", [("f", "{}")]),
        ),
    ],
)
def test_what_readers_say(plan: SessionPlan, text: str, wanted: Any) -> None:
    assert read(plan, text, None) == wanted
    chance = random.Random(5)
    for _ in range(50):
        assert read(plan, text, chance) == wanted


def test_arguments_that_are_not_json_are_not_passed_on() -> None:
    plan = SessionPlan(tool_reading=DOTS)
    assert read(plan, "a.not json.{}", None) == ("", "a", [("f", "{}")])
    assert read(plan, 'a.{"b": "c', None, is_cut=True) == ("", "a", [("f", '{"b": "c')])


def test_a_reader_sees_each_token_with_its_text() -> None:
    made: list[DotCalls] = []

    def begin() -> DotCalls:
        made.append(DotCalls())
        return made[-1]

    session = CountedSession(SessionPlan(tool_reading=ReadingPlan(begin=begin)))
    session.feed("abcd", (1, 2, 3), (2, 0, 2))
    assert made[0].seen == [("ab", 1), ("", 2), ("cd", 3)]


def test_reasoning_is_counted() -> None:
    counted = CountedSession(SessionPlan(reasoning_reading=BARS))
    counted.feed("abc|de", [ord(c) for c in "abc|de"], [1] * 6)
    assert counted.num_reasoning_tokens == len("abc|")


def body(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=USER, **fields)


def test_the_plan_of_a_request() -> None:
    asked = body(tools=TOOLS)
    parsers = Parsers(tool=Dots(None), reasoning=Bars(None))
    plan = session_plan(asked, parsers, FrontendConfig(), tail="")
    assert plan.tool_reading is not None
    assert plan.reasoning_reading is not None
    assert plan.reasoning is None
    facts: TokenizerFacts = FakeFacts(special_ids=frozenset({0, 7}))
    tokenizer: Any = SimpleNamespace(facts=lambda: facts)
    assert kept_special_ids(plan, lambda _: (), tokenizer) == (0, 7)


def test_calls_that_must_be_made_have_their_own_parser() -> None:
    with pytest.raises(Exception, match="cannot be constrained"):
        asked = body(tools=TOOLS, tool_choice="required")
        plan = session_plan(asked, Parsers(tool=Dots(None)), FrontendConfig(), tail="")
        answer_constraint(asked, plan, None)


def test_a_constraint_behind_unknown_reasoning_is_refused() -> None:
    app, engine = app_for(Script(), parsers=Parsers(reasoning=Bars(None)))
    engine.constraint_compiler = object()  # type: ignore[assignment]
    response = chat(app, response_format={"type": "json_object"})
    assert response.status_code == 400
    assert "does not say by which text the reasoning ends" in response.json()["error"]["message"]


def test_tokens_of_the_reasoning_are_not_shown_to_the_tool_parser() -> None:
    made: list[DotCalls] = []

    def begin() -> DotCalls:
        made.append(DotCalls())
        return made[-1]

    readings: list[dict[str, Any]] = [
        {"reasoning": Markers(start="<", end=">")},
        {"reasoning_reading": BARS},
    ]
    for reading, text in zip(readings, ("<a>b", "a|b"), strict=True):
        session = CountedSession(SessionPlan(tool_reading=ReadingPlan(begin=begin), **reading))
        session.feed(text, [ord(c) for c in text], [1] * len(text))
        session.finish()
        assert made[-1].seen == [("b", ord("b"))]
