"""The text-event pipeline: what a text comes to never depends on how it was cut."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from dovetail.interfaces.data.text import Markers, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.server.generate.events import (
    Collected,
    CountedSession,
    Session,
    SessionPlan,
    ToolCallStart,
)
from dovetail.server.generate.events.matcher import find_first, partial_length
from support.serving import NameAndJson, Thinks

PLAN = SessionPlan(reasoning=Thinks.markers, tool_parser=NameAndJson(None))
CALL = '[call]add {"a": 1}[/call]'

TEXTS = (
    "",
    "plain",
    " \n plain with [ and < and [cal \n",
    "<think>\nwhy\n</think>\n\nbecause",
    "<think></think>now",
    "<think>never closed [call] \n",
    "no think </think> here",
    "The tag <think> is text",
    CALL,
    f"first {CALL} then {CALL}{CALL}\n\nlast",
    f"<think>hm</think>\n{CALL}\n<think>again</think>\ndone",
    "[call]not json[/call] after",
    'x [call]say {"t": "a [/call] b"}[/call] y',
    'x [call]say {"t": "open [/call] and [call]more {} [/call] end',
    '[call]cut {"a": ',
    '[call]no end marker {"a": 2}',
    "[call][call][/call][/call]",
    "\n\n[call]bad[/call]\n\n" + CALL,
)


def run(text: str, cuts: list[int], plan: SessionPlan = PLAN) -> tuple[object, ...]:
    session, answer, start = Session(plan), Collected(), 0
    for end in [*cuts, len(text)]:
        answer.add(session.feed(text[start:end]))
        start = end
    answer.add(session.finish())
    calls = [(call.name, call.arguments) for call in answer.calls]
    return answer.content, answer.reasoning, calls


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("starts_inside", [False, True])
def test_cuts_do_not_matter(text: str, starts_inside: bool) -> None:
    plan = SessionPlan(
        reasoning=Thinks.markers, tool_parser=NameAndJson(None), starts_inside=starts_inside
    )
    whole = run(text, [], plan)
    chance = random.Random(text)
    ways = [list(range(len(text)))] + [[at] for at in range(len(text))]
    ways += [
        sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 12))) for _ in range(120)
    ]
    for cuts in ways:
        assert run(text, cuts, plan) == whole, cuts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", ("because", "why", [])),
        ("A <think> tag", ("A <think> tag", "", [])),
        (f"first \n{CALL}\n\n last", ("first \nlast", "", [("add", '{"a": 1}')])),
        ("[call]bad[/call] x", ("[call]bad[/call] x", "", [])),
        ('[call]s {"t": "[/call]"}[/call]', ("", "", [("s", '{"t": "[/call]"}')])),
        ('[call]s "open[/call]' + CALL, ('[call]s "open[/call]', "", [("add", '{"a": 1}')])),
        ('[call]s {"a": 2}', ("", "", [("s", '{"a": 2}')])),
        (f"<think>a</think>{CALL}<think>b</think>c", ("c", "ab", [("add", '{"a": 1}')])),
        (f"first{CALL}\n\nlast", ("first\n\nlast", "", [("add", '{"a": 1}')])),
        (f"first{CALL}last\n", ("firstlast\n", "", [("add", '{"a": 1}')])),
        (f"first\n{CALL}\n\n{CALL}\n", ("first", "", [("add", '{"a": 1}')] * 2)),
        (f"\n{CALL}\nlast", ("last", "", [("add", '{"a": 1}')])),
        ("trailing blanks \n", ("trailing blanks \n", "", [])),
    ],
)
def test_what_texts_come_to(text: str, expected: tuple[object, ...]) -> None:
    assert run(text, []) == expected


def test_the_prompt_may_open_the_thinking() -> None:
    plan = SessionPlan(reasoning=Thinks.markers, starts_inside=True)
    assert run("why</think>because", [3, 7], plan) == ("because", "why", [])
    assert run("<think>why</think>because", [2], plan) == ("because", "why", [])


def test_without_parsers_text_passes_unchanged() -> None:
    text = " <think> [call] \n"
    assert run(text, [1, 5], SessionPlan()) == (text, "", [])


def test_layout_is_no_content_but_may_stand_in_a_call() -> None:
    plan = SessionPlan(tool_parser=NameAndJson(None), layout=("<answer>", "<answer>!"))
    text = '<answer>!a<answer>b[call]f {"t": "<answer>"}[/call]<answer>[call]no<answer>[/call]'
    whole = run(text, [], plan)
    assert whole == ("ab[call]no[/call]", "", [("f", '{"t": "<answer>"}')])
    assert all(run(text, [at], plan) == whole for at in range(len(text)))
    assert run(text, list(range(len(text))), plan) == whole


class Dotted(NameAndJson):
    """Calls are "@name." to the first dot; no marker ends them."""

    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="@"),)
    id_prefix: ClassVar[str] = "c"
    id_digits: ClassVar[int] = 5

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call, which names itself if its name begins with "my"."""
        if not body.strip(".").isalpha():
            raise MalformedToolCall(body)
        own = "own-id" if body.startswith("my") else ""
        return [ToolCall(name=body.strip("."), arguments="{}", id=own)]

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Refuse what can become no name."""
        if body.strip(".") and not body.strip(".").isalpha():
            raise MalformedToolCall(body)
        return []

    def region_end(self, body: str) -> int | None:
        """Return the place behind the first dot."""
        return body.index(".") + 1 if "." in body else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a @f. b @g.", ("a b", "", [("f", "{}"), ("g", "{}")])),
        ("a @f", ("a", "", [("f", "{}")])),
        ("a @f1. b @g. and much more text", ("a @f1. b and much more text", "", [("g", "{}")])),
        ("@f.<end> @g.<en", ("<en", "", [("f", "{}"), ("g", "{}")])),
        ("@1<end>23456789012345678901234567890<end>", ("@123456789012345678901234567890", "", [])),
    ],
)
def test_a_region_may_end_by_its_own_syntax(text: str, expected: tuple[object, ...]) -> None:
    plan = SessionPlan(tool_parser=Dotted(None), layout=("<end>",))
    assert run(text, [], plan) == expected
    for at in range(len(text)):
        assert run(text, [at], plan) == expected
    assert run(text, list(range(len(text))), plan) == expected


def test_call_ids_are_the_models_or_of_the_parsers_shape() -> None:
    session = Session(SessionPlan(tool_parser=Dotted(None)))
    events = session.feed("@myself. @f.") + session.finish()
    first, second = (event.call_id for event in events if isinstance(event, ToolCallStart))
    assert first == "own-id"
    assert second.startswith("c")
    assert len(second) == 6


def test_max_calls_keeps_the_first() -> None:
    plan = SessionPlan(tool_parser=NameAndJson(None), max_calls=1)
    content, _, calls = run(f"{CALL}[call]sub {{}}[/call]", [], plan)
    assert (content, calls) == ("", [("add", '{"a": 1}')])


def test_text_is_not_held_back_longer_than_needed() -> None:
    session = Session(PLAN)
    answer = Collected()
    answer.add(session.feed("Hello wor"))
    assert answer.content == "Hello wor"
    answer.add(session.feed("ld [c"))
    assert answer.content == "Hello world"


@pytest.mark.parametrize(
    "text",
    [
        "[call]" * 50_000,
        '[call]"[/call]' * 20_000,
        " " * 200_000,
        "<think>" * 40_000,
        "[" * 300_000,
    ],
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    start_s = time.perf_counter()
    run(text, list(range(0, len(text), 5)))
    assert time.perf_counter() - start_s < 5


STOPPED = SessionPlan(
    reasoning=Thinks.markers, tool_parser=NameAndJson(None), stops=("stop", "\n\n", "op it")
)


@pytest.mark.parametrize(
    ("text", "expected", "matched"),
    [
        ("<think>stop</think>go stop it", ("go ", "stop", []), "stop"),
        ("<think>a\n\nb</think>\n\ngo\n\non", ("go", "a\n\nb", []), "\n\n"),
        ('[call]f {"t": "stop"}[/call]', ("", "", [("f", '{"t": "stop"}')]), None),
        (f"st{CALL}op", ("stop", "", [("add", '{"a": 1}')]), None),
        (f"stop{CALL}", ("", "", []), "stop"),
        ("[call]no stop[/call]", ("[call]no ", "", []), "stop"),
        (f"a\n\n{CALL}", ("a", "", [("add", '{"a": 1}')]), None),
        ("to st", ("to st", "", []), None),
        ("a\n\n", ("a", "", []), "\n\n"),
    ],
)
def test_stop_strings_end_content_and_nothing_else(
    text: str, expected: tuple[object, ...], matched: str | None
) -> None:
    for cuts in ([], list(range(len(text))), *([at] for at in range(len(text)))):
        assert run(text, cuts, STOPPED) == expected
        session = Session(STOPPED)
        session.feed(text)
        session.finish()
        assert session.matched == matched


def test_stop_strings_wait_for_min_tokens() -> None:
    counted = CountedSession(replace(STOPPED, min_tokens=3))
    answer = Collected()
    for text in ("stop", "s", "top", "stop"):
        answer.add(counted.feed(text, (1,), (len(text),)))
    assert (answer.content, counted.matched) == ("stop", "stop")


def test_blanks_wait_only_where_a_region_may_follow() -> None:
    session, answer = Session(replace(STOPPED, tool_parser=None)), Collected()
    answer.add(session.feed("one\n\n"))
    assert (answer.content, session.matched) == ("one", "\n\n")


def test_matcher() -> None:
    found = find_first("xx<ab><abc>", ("<abc>", "<ab>"))
    assert found is not None
    assert (found.start, found.which) == (2, 1)
    assert partial_length("text<ab", ("<abc>", "<a")) == 3
    assert partial_length("text", ("<abc>",)) == 0


def test_overlapping_markers_are_cut_invariant() -> None:
    class Two(NameAndJson):
        markers = (Markers(start="[c", end="]"), Markers(start="[call]", end="[/call]"))

    plan = SessionPlan(tool_parser=Two(None))
    text = "x[call]f {}[/call]y[cf {}]z"
    whole = run(text, [], plan)
    assert all(run(text, [at], plan) == whole for at in range(len(text)))
    assert whole == ("xyz", "", [("f", "{}"), ("f", "{}")])
