"""ToolParser: samples parse as they say, however the text is cut, and no text is lost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail_testing.constraint_examples import example
from dovetail_testing.contract import requires
from dovetail_testing.text_splits import (
    Parsed,
    cuts,
    damaged,
    expected,
    letters,
    parse_in_pieces,
    random_cuts,
)

BODIES = (
    "", " ", "\n", "{", "}", "{}", "[]", "[[[", "null", "42", '"text"', "<", "<<<>>>", "\x00",
    "NaN", '{"name": 1}', '{"name": "f", "arguments": ', '{"name": "f", "arguments": "not json"}',
    "name(", "name(a=", "\N{SNOWMAN}" * 9, "\ud83d", "{" * 5000, "[" * 5000 + "]" * 5000,
)  # fmt: skip
NUM_DAMAGED = 25
LETTERS_EACH = 7
"""Every N-th cut, a text is streamed letter by letter up to it, which is quadratic."""
LONG_TEXT_BYTES = 60_000
LONG_TEXT_S = 5.0


@pytest.fixture
def parser(plugin: Any) -> ToolParser:
    """Return the parser with its default options."""
    tool_parser: ToolParser = plugin(plugin.Options())
    return tool_parser


def tools_of(sample: Sample) -> tuple[Tool, ...]:
    """Return the sample's tools, or tools without schemas named like its calls."""
    return sample.tools or tuple(Tool(name=call.name) for call in sample.calls)


def run(parser: ToolParser, pieces: list[str], sample: Sample) -> Parsed:
    """Return the pipeline's result for pieces of a sample's text."""
    return parse_in_pieces(pieces, tool_parser=parser, tools=tools_of(sample))


CONSTRAINT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["text", "number"],
    "additionalProperties": False,
}


def bodies(parser: ToolParser, text: str) -> list[str]:
    """Return the bodies of the regions that a text opens, as a parser would get them."""
    found = []
    for marker in parser.markers:
        at = text.find(marker.start)
        while at >= 0 and not (marker.opens_answer and text[:at].strip()):
            begin = at if marker.is_body else at + len(marker.start)
            end = text.find(marker.end, begin) if marker.end else -1
            found.append(text[begin : end if end >= 0 else len(text)])
            at = text.find(marker.start, at + len(marker.start))
    return found


def opening(parser: ToolParser, text: str) -> Markers | None:
    """Return the markers that come first in a text."""
    found = [(text.find(m.start), -len(m.start), m) for m in parser.markers if m.start in text]
    return min(found, key=lambda place: place[:2])[2] if found else None


def is_cut(parser: ToolParser, text: str) -> bool:
    """Return whether a text ends within a region."""
    last = max(((text.rfind(m.start), m) for m in parser.markers), key=lambda pair: pair[0])
    if last[0] >= 0 and last[1].end:
        return text.find(last[1].end, last[0] + len(last[1].start)) < 0
    return any(
        text.endswith(body) and parser.region_end(body) is None and not parsed(parser, body, ())
        for body in bodies(parser, text)
    )


def so_far(parser: ToolParser, body: str, tools: tuple[Tool, ...]) -> list[ToolCall]:
    """Return the parser's calls of a prefix; none if it cannot be a call."""
    try:
        return parser.so_far(body, tools)
    except MalformedToolCall:
        return []


def parsed(parser: ToolParser, body: str, tools: tuple[Tool, ...]) -> list[ToolCall] | None:
    """Return the calls of a whole body, or None if it is none."""
    try:
        return parser.parse(body, tools)
    except MalformedToolCall:
        return None


def said(parser: ToolParser, text: str) -> str:
    """Return the part of a text that must come out, if none of it is a call."""
    return letters(parser.heads.sub("", text) if parser.heads else text, parser.layout)


def grows(before: list[ToolCall], now: list[ToolCall]) -> bool:
    """Return whether the calls are the earlier ones, arguments longer or the same, or more."""
    return len(now) >= len(before) and all(
        b.name == n.name and n.arguments.startswith(b.arguments)
        for b, n in zip(before, now, strict=False)
    )


class TestToolParser:
    """Clauses of tool parsers."""

    kind = "tool_parser"

    def test_has_markers(self, plugin: Any) -> None:
        """Every region opens with some text."""
        assert plugin.markers
        assert all(marker.start for marker in plugin.markers)

    def test_has_samples(self, plugin: Any) -> None:
        """There is a sample with a call and one that is not a call: the kit cannot invent them."""
        assert any(sample.calls for sample in plugin.samples)
        assert any(plugin.markers[0].start in s.text and not s.calls for s in plugin.samples), (
            "a sample should show a marked region that is not a call"
        )

    def test_samples_parse(self, parser: ToolParser) -> None:
        """Each sample's whole text is read as the sample says."""
        for sample in parser.samples:
            assert run(parser, [sample.text], sample) == expected(sample)

    def test_cut_does_not_matter(self, parser: ToolParser) -> None:
        """Each sample is read the same, whatever pieces its text comes in."""
        for sample in parser.samples:
            whole = run(parser, [sample.text], sample)
            for pieces in cuts(sample.text):
                assert run(parser, pieces, sample) == whole, pieces

    def test_a_cut_answer_holds_the_beginning_of_its_calls(self, parser: ToolParser) -> None:
        """Wherever max_tokens cuts a sample, its calls are a prefix of the whole's: names whole,
        arguments not closed before they are. Letter by letter it is the same (tried at some of the
        cuts)."""
        for sample in parser.samples:
            tools = tools_of(sample)
            whole = run(parser, [sample.text], sample)
            for at in range(len(sample.text)):
                pieces = [sample.text[:at]]
                cut = parse_in_pieces(pieces, tool_parser=parser, tools=tools, is_cut=True)
                assert grows(list(cut.calls), list(whole.calls)), (pieces, cut.calls)
                if at % LETTERS_EACH == 0:
                    letters = [*sample.text[:at]]
                    again = parse_in_pieces(letters, tool_parser=parser, tools=tools, is_cut=True)
                    assert cut == again, at

    def test_calls_only_grow(self, parser: ToolParser) -> None:
        """A result of `so_far` for a prefix holds for every longer one, and for `parse`."""
        for sample in parser.samples:
            tools = tools_of(sample)
            for body in bodies(parser, sample.text):
                before: list[ToolCall] = []
                for end in range(len(body) + 1):
                    now = so_far(parser, body[:end], tools)
                    assert grows(before, now), (body[:end], before, now)
                    before = now
                assert grows(before, parsed(parser, body, tools) or before), body

    def test_region_end_stays(self, parser: ToolParser) -> None:
        """Once a region is over by its own syntax, a longer body does not move its end."""
        for sample in parser.samples:
            for body in bodies(parser, sample.text):
                ends = [parser.region_end(body[:end]) for end in range(len(body) + 1)]
                named = [(at, end) for at, end in enumerate(ends) if end is not None]
                assert all(end == named[0][1] <= at for at, end in named), body
                assert not named or len(named) == len(ends) - named[0][0], body

    @requires("streams")
    def test_arguments_come_while_they_are_written(self, parser: ToolParser) -> None:
        """Of some sample's call the name is known before the region ends."""
        begun = [
            so_far(parser, body[: len(body) * 3 // 4], tools_of(sample))
            for sample in parser.samples
            for body in bodies(parser, sample.text)
        ]
        assert any(begun)

    @requires("constrains_calls")
    def test_constraints_are_calls(self, parser: ToolParser) -> None:
        """A text of the constraint of a tool's calls is calls of that tool, with those
        arguments."""
        tool = Tool(name="find_it", parameters=CONSTRAINT_SCHEMA)
        constraint = parser.constraint(tool)
        assert constraint is not None
        for arguments in ({"text": "a b", "number": 3}, {"text": 'say "no"\n', "number": -1}):
            for max_calls in (1, 3):
                text = example(parser.calls_constraint(constraint, max_calls), arguments)
                got = parse_in_pieces([text], tool_parser=parser, tools=(tool,))
                assert not got.content, text
                assert 1 <= len(got.calls) <= max_calls, text
                assert {call.name for call in got.calls} == {"find_it"}, text
                assert all(json.loads(call.arguments) == arguments for call in got.calls), text

    def test_arguments_are_json_objects(self, parser: ToolParser) -> None:
        """The arguments of every call that is not cut off are the text of a JSON object, both in
        the parser's result for a whole region and in the end."""
        whole = [s for s in parser.samples if not is_cut(parser, s.text)]
        assert any(sample.calls for sample in whole)
        for sample in whole:
            for body in bodies(parser, sample.text):
                for call in parsed(parser, body, tools_of(sample)) or ():
                    assert call.text or isinstance(json.loads(call.arguments), dict), body
            for call in run(parser, [sample.text], sample).calls:
                assert isinstance(json.loads(call.arguments), dict)

    def test_content_around_calls_stays(self, parser: ToolParser) -> None:
        """Text before and after a call is content, unchanged except for blanks next to the call."""
        for sample in (s for s in parser.samples if s.calls and not s.content):
            marker = opening(parser, sample.text)
            assert marker is not None
            got = run(parser, [f"Before it. {sample.text}"], sample)
            if marker.opens_answer:
                assert (got.content.strip(), got.calls) == (f"Before it. {sample.text}", ())
            else:
                assert (got.content.strip(), got.calls) == ("Before it.", sample.calls)
            if not is_cut(parser, sample.text):
                got = run(parser, [f"{sample.text} After it."], sample)
                assert got.content.strip() == "After it."

    def test_plain_text_passes(self, parser: ToolParser) -> None:
        """Text without a marker comes out as it went in, whatever it looks like."""
        for text in ("Hello, world.", "a < b and {c: [1, 2]}\n", "\N{SNOWMAN} <", " x\n\n y "):
            got = parse_in_pieces(list(text), tool_parser=parser)
            assert (got.content.strip(), got.calls) == (text.strip(), ())

    def test_cut_off_calls_lose_no_text(self, parser: ToolParser) -> None:
        """A text that ends in the middle of a call raises nothing and drops nothing silently."""
        for sample in parser.samples:
            for end in range(len(sample.text)):
                text = sample.text[:end]
                got = run(parser, [text], sample)
                if not got.calls:
                    assert said(parser, got.content) == said(parser, text)

    def test_damaged_text_loses_nothing(self, parser: ToolParser) -> None:
        """Samples with parts deleted, doubled and exchanged give the same result however they are
        cut; text that is not a call is content."""
        for number, sample in enumerate(parser.samples):
            for text in damaged(sample.text, seed=number, num=NUM_DAMAGED):
                whole = run(parser, [text], sample)
                for pieces in random_cuts(text, seed=number, num=3):
                    assert run(parser, pieces, sample) == whole, pieces
                if not whole.calls:
                    assert said(parser, whole.content) == said(parser, text)

    @pytest.mark.parametrize("number", range(len(BODIES)))
    def test_malformed_bodies(self, parser: ToolParser, number: int) -> None:
        """A region that is not a call is refused with MalformedToolCall, or is a call after all."""
        try:
            calls = parser.parse(BODIES[number], ())
        except MalformedToolCall:
            return
        assert all(isinstance(call, ToolCall) for call in calls)
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)

    def test_unknown_tools_are_passed_on(self, parser: ToolParser) -> None:
        """A call of a tool that was not offered is still a call: refusing it is the client's
        choice."""
        for sample in (s for s in parser.samples if s.calls and not s.tools):
            got = parse_in_pieces([sample.text], tool_parser=parser, tools=(Tool(name="other"),))
            assert [call.name for call in got.calls] == [call.name for call in sample.calls]

    def test_sessions_are_apart(self, parser: ToolParser) -> None:
        """Parsing one text half-way does not change how another text is read."""
        sample = next(sample for sample in parser.samples if sample.calls)
        run(parser, [sample.text[: len(sample.text) // 2]], sample)
        assert run(parser, [sample.text], sample) == expected(sample)

    def test_long_text_takes_linear_time(self, parser: ToolParser) -> None:
        """A long text that opens regions again and again is parsed in seconds."""
        text = (parser.markers[0].start + ' {"name": ') * (LONG_TEXT_BYTES // 20)
        pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
        start_s = time.perf_counter()
        parse_in_pieces(pieces, tool_parser=parser)
        assert time.perf_counter() - start_s < LONG_TEXT_S
