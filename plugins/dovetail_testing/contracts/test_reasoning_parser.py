"""ReasoningParser: samples parse as stated, however the text is cut, with any tool parser."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import PluginError
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail_testing.contract import requires, without
from dovetail_testing.text_splits import Parsed, cuts, expected, letters, parse_in_pieces

PROMPT = "user: how many are two?\nassistant: "


@pytest.fixture
def parser(plugin: Any) -> ReasoningParser:
    """Return the parser with its default options."""
    reasoning_parser: ReasoningParser = plugin(plugin.Options())
    return reasoning_parser


def run(parser: ReasoningParser, pieces: list[str], prompt: str = PROMPT) -> Parsed:
    """Return the pipeline's result for pieces of an answer to this prompt."""
    return parse_in_pieces(
        pieces,
        reasoning=parser.markers,
        starts_inside=parser.starts_inside(prompt),
        layout=parser.layout,
    )


class TestReasoningParser:
    """Clauses of reasoning parsers."""

    kind = "reasoning_parser"

    def test_has_markers(self, plugin: Any) -> None:
        """Thinking opens and closes with some text."""
        assert plugin.markers.start
        assert plugin.markers.end

    def test_has_samples(self, plugin: Any) -> None:
        """There is a sample with reasoning and content."""
        assert any(sample.reasoning and sample.content for sample in plugin.samples)

    def test_samples_parse(self, parser: ReasoningParser) -> None:
        """Each sample's whole text is read as the sample says."""
        for sample in parser.samples:
            assert run(parser, [sample.text]) == expected(sample)

    def test_cut_does_not_matter(self, parser: ReasoningParser) -> None:
        """Each sample is read the same, whatever pieces its text comes in."""
        for sample in parser.samples:
            whole = run(parser, [sample.text])
            for pieces in cuts(sample.text):
                assert run(parser, pieces) == whole, pieces

    def test_prompt_may_open_thinking(self, parser: ReasoningParser) -> None:
        """After a prompt that ends with the opening marker the answer begins inside."""
        opened = f"{PROMPT}{parser.markers.start}\n"
        assert parser.starts_inside(opened)
        got = run(parser, [f"why{parser.markers.end}because"], opened)
        assert (got.reasoning, got.content) == ("why", "because")

    def test_prompt_may_close_thinking(self, parser: ReasoningParser) -> None:
        """After a prompt that holds a closed thinking block the answer is content."""
        closed = f"{PROMPT}{parser.markers.start}\n\n{parser.markers.end}\n\n"
        assert not parser.starts_inside(closed)
        got = run(parser, ["because"], closed)
        assert (got.reasoning, got.content) == ("", "because")

    @requires("implicit_start")
    def test_thinking_may_begin_unmarked(self, parser: ReasoningParser) -> None:
        """Text before a closing marker that was never opened is thinking."""
        got = run(parser, [f"why{parser.markers.end}because"])
        assert (got.reasoning, got.content) == ("why", "because")

    @without("implicit_start")
    def test_unmarked_text_is_content(self, parser: ReasoningParser) -> None:
        """Without an opening marker there is no thinking."""
        assert run(parser, ["just an answer"]).content == "just an answer"

    def test_unclosed_thinking_is_kept(self, parser: ReasoningParser) -> None:
        """An answer cut off while thinking comes out as reasoning, whole."""
        got = run(parser, list(f"{parser.markers.start}on and on"))
        assert (got.reasoning, got.content) == ("on and on", "")

    def test_no_text_is_lost(self, parser: ReasoningParser) -> None:
        """Every character but the markers' comes out, wherever the text ends."""
        for sample in parser.samples:
            for end in range(len(sample.text) + 1):
                got = run(parser, [sample.text[:end]])
                said = self.unmarked(parser, got.reasoning + got.content)
                text = self.unmarked(parser, sample.text[:end])
                assert sorted(letters(said)) == sorted(letters(text, parser.layout))

    def unmarked(self, parser: ReasoningParser, text: str) -> str:
        """Return the text without markers (one inside other text may remain)."""
        return text.replace(parser.markers.start, "").replace(parser.markers.end, "")

    def test_composes_with_tool_parsers(self, parser: ReasoningParser) -> None:
        """Thinking, then a call: each is recognized, with every available tool parser."""
        for entry in registry.entries("tool_parser"):
            try:
                tool_class = registry.admin.load_entry(entry)
            except PluginError:
                continue
            tool_parser = tool_class(tool_class.Options())
            sample = next((s for s in tool_parser.samples if s.calls and not s.tools), None)
            if sample is None:
                continue
            text = f"{parser.markers.start}why{parser.markers.end}{sample.text}"
            for pieces in ([text], list(text)):
                got = parse_in_pieces(
                    pieces,
                    tool_parser=tool_parser,
                    reasoning=parser.markers,
                    layout=parser.layout,
                )
                assert (got.reasoning, got.calls) == ("why", sample.calls), entry.id
