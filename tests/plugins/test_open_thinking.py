"""Calls in thinking: one that opens in thinking which is never closed ends it, closed thinking
holds none. Every text comes to the same wherever it is cut."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Markers, Tool
from dovetail.server.generate.events import (
    Collected,
    CountedSession,
    ReasoningDelta,
    Session,
    SessionPlan,
)
from dovetail_testing.text_splits import parse_in_pieces, random_cuts
from support.cut_texts import cuts
from support.parser_fuzz import random_text
from support.samples import sample_of
from support.serving import NameAndJson

FAMILIES = [
    # reasoning parser, tool parser
    ("qwen3", "qwen3_coder"),
    ("qwen3", "hermes"),
    ("kimi_k2", "kimi_k2"),
    ("glm45", "glm45"),
    ("minimax_m2", "minimax_m2"),
    ("mistral", "mistral"),
    ("deepseek_v3", "deepseek_v31"),
    ("deepseek_v3", "deepseek_v3"),
]


def made(kind: str, name: str):  # type: ignore[no-untyped-def]
    plugin = registry.load(kind, name)
    return plugin(plugin.Options())


@pytest.mark.parametrize(("reasoning_name", "tool_name"), FAMILIES)
@pytest.mark.parametrize("starts_inside", [True, False])
def test_a_call_ends_thinking_that_is_never_closed(
    reasoning_name: str, tool_name: str, starts_inside: bool
) -> None:
    tool_parser = made("tool_parser", tool_name)
    markers = made("reasoning_parser", reasoning_name).markers
    sample = next(s for s in tool_parser.samples if s.calls and not s.content)
    tools = tuple(Tool(name=call.name) for call in sample.calls)
    opening = "" if starts_inside else f"{markers.start}\n"
    call, marker = sample.text, tool_parser.markers[0].start
    texts = {
        f"Let me look.\n\n{call}": ("Let me look.", "", sample.calls),
        f"Let me look.{call}\n{markers.end}\nDone.": (
            f"Let me look.{call}" if "\n" not in call[-1] else None,
            "Done.",
            (),
        ),
        f"Look.{markers.end}\n\n{call}": ("Look.", "", sample.calls),
        f"A {marker} is next. {call}": (f"A {marker} is next.", "", sample.calls),
        f"A {marker} opens": (f"A {marker} opens", "", ()),
        f"A {marker} opens {markers.end}so": (f"A {marker} opens", "so", ()),
    }
    for text, (reasoning, content, calls) in texts.items():

        def run(pieces: list[str]) -> object:
            return parse_in_pieces(
                pieces,
                tool_parser=tool_parser,
                reasoning=markers,
                starts_inside=starts_inside,
                tools=tools,
            )

        whole = parse_in_pieces(
            [opening + text],
            tool_parser=tool_parser,
            reasoning=markers,
            starts_inside=starts_inside,
            tools=tools,
        )
        assert (whole.content, whole.calls) == (content, calls), text
        assert reasoning is None or whole.reasoning == reasoning
        for pieces in cuts(opening + text):
            assert run(pieces) == whole, pieces


def test_other_families_keep_their_thinking() -> None:
    """Where models do not write so, thinking that is cut off is thinking."""
    tool_parser = made("tool_parser", "granite")
    markers = made("reasoning_parser", "granite33").markers
    text = '<think>hm <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    got = parse_in_pieces([text], tool_parser=tool_parser, reasoning=markers)
    assert (got.reasoning, got.calls) == (text.removeprefix("<think>"), ())


@pytest.mark.parametrize(("reasoning_name", "tool_name"), FAMILIES)
def test_hostile_texts_in_open_thinking(reasoning_name: str, tool_name: str) -> None:
    tool_parser = made("tool_parser", tool_name)
    markers = made("reasoning_parser", reasoning_name).markers
    chance = random.Random(5)
    for number in range(sample_of(30, 5)):
        text = random_text(tool_parser, chance)
        text += chance.choice(("", "", markers.end, f"{markers.end} so", markers.start))

        def run(pieces: list[str]) -> object:
            return parse_in_pieces(
                pieces, tool_parser=tool_parser, reasoning=markers, starts_inside=True
            )

        whole = run([text])
        for pieces in itertools.chain(random_cuts(text, seed=number, num=10), [list(text)]):
            assert run(pieces) == whole, pieces


THINK = Markers(start="<think>", end="</think>", ends_with_call=True)
PLAN = SessionPlan(reasoning=THINK, tool_parser=NameAndJson(None), starts_inside=True)


@pytest.mark.parametrize(
    ("text", "num"),
    [
        ("ab[call]f {}[/call]", 8),
        ("ab[call]f {}[/call]</think>c", 27),
        ("ab[call]no[/call]c", 18),
        ("ab[call]f {}", 8),
        ("ab[call]", 8),
    ],
)
def test_tokens_of_such_a_call_are_not_reasoning(text: str, num: int) -> None:
    """A token a letter, in any pieces; the marker counts, as one that closes thinking does."""
    for size in (1, 2, 5, len(text)):
        counted = CountedSession(PLAN)
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            counted.feed(piece, range(len(piece)), [1] * len(piece))
        counted.finish()
        assert counted.num_reasoning_tokens == num


def test_stop_strings_count_behind_such_a_call() -> None:
    plan = SessionPlan(
        reasoning=THINK, tool_parser=NameAndJson(None), starts_inside=True, stops=("stop",)
    )
    session, answer = Session(plan), Collected()
    answer.add(session.feed("a stop [call]f {}[/call] and stop here"))
    answer.add(session.finish())
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("a stop", "and ", 1)
    assert session.matched == "stop"


def test_a_call_of_no_tool_is_thought_of() -> None:
    plan = replace(PLAN, tools=(Tool(name="g"),))
    for name, num in (("f", 0), ("g", 1)):
        session, answer = Session(plan), Collected()
        answer.add(session.feed(f"a [call]{name} {{}}[/call]"))
        answer.add(session.finish())
        assert len(answer.calls) == num


def test_thinking_is_not_held_back_by_what_is_no_call() -> None:
    """Where the syntax shows at once that a marker opens no call, thinking goes on as it comes."""
    tool_parser = made("tool_parser", "qwen3_coder")
    session = Session(SessionPlan(reasoning=THINK, tool_parser=tool_parser, starts_inside=True))
    events = session.feed("I could use <tool_call> for this, or ask again")
    said = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert said == "I could use <tool_call> for this, or ask again"
    assert session.feed(" <tool_call><function=f>") == []


@pytest.mark.parametrize(
    "text", ["[call]" * 30_000, '[call]"[/call]' * 10_000, "[call]f {} " * 9000]
)
def test_hostile_thinking_takes_linear_time(text: str) -> None:
    session = Session(PLAN)
    answer = Collected()
    for start in range(0, len(text), 7):
        answer.add(session.feed(text[start : start + 7]))
    answer.add(session.finish())
    assert len(answer.reasoning) + len(answer.content) <= len(text)


@pytest.mark.parametrize(
    ("tool_name", "text"),
    [
        ("gpt-oss", "<think>a <|start|>assistant to=<|channel|>b<|constran|>json</think>c"),
        ("gpt-oss", "<think>a <|start|>assistant to=<|channel|>b<|constran|>json"),
        ("deepseek_v4", "<think>a <｜DSML｜tool_calls>b<｜DSML｜invoke>c</think>d"),
        ("deepseek_v4", "<think>a <｜DSML｜invoke>b"),
    ],
)
def test_layout_at_the_head_of_what_is_no_call(tool_name: str, text: str) -> None:
    """It is read as layout whether or not the thinking is closed behind it."""
    tool_parser = made("tool_parser", tool_name)
    whole = parse_in_pieces([text], tool_parser=tool_parser, reasoning=THINK)
    assert "<|start|>assistant" not in whole.reasoning
    assert "DSML" not in whole.reasoning
    for pieces in cuts(text):
        assert parse_in_pieces(pieces, tool_parser=tool_parser, reasoning=THINK) == whole, pieces
