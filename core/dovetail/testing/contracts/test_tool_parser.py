"""ToolParser: samples parse as they say, however the text is cut, and no text is lost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dovetail.interfaces.text import Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.testing.cuts import Parsed, cuts, expected, letters, parse_in_pieces

BODIES = (
    "", " ", "\n", "{", "}", "{}", "[]", "[[[", "null", "42", '"text"', "<", "<<<>>>", "\x00",
    "NaN", '{"name": 1}', '{"name": "f", "arguments": ', '{"name": "f", "arguments": "not json"}',
    "name(", "name(a=", "\N{SNOWMAN}" * 9, "\ud83d", "{" * 5000, "[" * 5000 + "]" * 5000,
)  # fmt: skip
LONG_TEXT_BYTES = 60_000
LONG_TEXT_S = 5.0


@pytest.fixture
def parser(plugin: Any) -> ToolParser:
    """Return the parser with its default options."""
    made: ToolParser = plugin(plugin.Options())
    return made


def tools_of(sample: Sample) -> tuple[Tool, ...]:
    """Return the sample's tools, or tools without schemas named like its calls."""
    return sample.tools or tuple(Tool(name=call.name) for call in sample.calls)


def run(parser: ToolParser, pieces: list[str], sample: Sample) -> Parsed:
    """Return what the pipeline makes of pieces of a sample's text."""
    return parse_in_pieces(pieces, tool_parser=parser, tools=tools_of(sample))


class TestToolParser:
    """Clauses of tool parsers."""

    kind = "tool_parser"

    def test_has_markers(self, plugin: Any) -> None:
        """Every region opens with some text."""
        assert plugin.markers
        assert all(marker.start for marker in plugin.markers)

    def test_has_samples(self, plugin: Any) -> None:
        """There is a sample with a call and one that is no call: the kit cannot invent them."""
        assert any(sample.calls for sample in plugin.samples)
        assert any(plugin.markers[0].start in s.text and not s.calls for s in plugin.samples), (
            "a sample should show a marked region that is no call"
        )

    def test_samples_parse(self, parser: ToolParser) -> None:
        """Each sample's whole text comes to what the sample says."""
        for sample in parser.samples:
            assert run(parser, [sample.text], sample) == expected(sample)

    def test_cut_does_not_matter(self, parser: ToolParser) -> None:
        """Each sample comes to the same whatever pieces its text comes in."""
        for sample in parser.samples:
            whole = run(parser, [sample.text], sample)
            for pieces in cuts(sample.text):
                assert run(parser, pieces, sample) == whole, pieces

    def test_arguments_are_json_objects(self, parser: ToolParser) -> None:
        """The arguments of every call are the text of a JSON object."""
        for sample in parser.samples:
            for call in run(parser, [sample.text], sample).calls:
                assert isinstance(json.loads(call.arguments), dict)

    def test_content_around_calls_stays(self, parser: ToolParser) -> None:
        """Text before and after a call is content, unchanged but for blanks beside the call."""
        for sample in (s for s in parser.samples if s.calls and not s.content):
            got = run(parser, [f"Before it. {sample.text}"], sample)
            assert got.calls == sample.calls
            assert got.content.strip() == "Before it."
            if all(marker.end for marker in parser.markers):
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
                    assert letters(got.content) == letters(text)

    @pytest.mark.parametrize("number", range(len(BODIES)))
    def test_malformed_bodies(self, parser: ToolParser, number: int) -> None:
        """A region that is no call is refused with MalformedToolCall, or is a call after all."""
        try:
            calls = parser.parse(BODIES[number], ())
        except MalformedToolCall:
            return
        assert all(isinstance(call, ToolCall) for call in calls)
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)

    def test_unknown_tools_are_passed_on(self, parser: ToolParser) -> None:
        """A call of a tool nobody offered is still a call: refusing it is the client's choice."""
        for sample in (s for s in parser.samples if s.calls and not s.tools):
            got = parse_in_pieces([sample.text], tool_parser=parser, tools=(Tool(name="other"),))
            assert [call.name for call in got.calls] == [call.name for call in sample.calls]

    def test_sessions_are_apart(self, parser: ToolParser) -> None:
        """Parsing one text half-way does not change what another text comes to."""
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
