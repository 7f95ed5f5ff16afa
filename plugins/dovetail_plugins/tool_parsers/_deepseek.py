"""What the tool parsers of DeepSeek share: one section around all calls, tags that are special
tokens of the vocabulary, one JSON object for each call. Knows no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.form import Form, divided, sequence
from dovetail.interfaces.text import Markers, Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.syntax.tagged_calls import TaggedCalls

SECTION = Markers(start="<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>")
BEGIN = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class DeepseekSection(ToolParser):
    """Calls between tags within one section; `calls` are the tags of one version."""

    capabilities = frozenset({"parallel_calls", "streams", "has_form"})
    markers: ClassVar[tuple[Markers, ...]] = (SECTION,)
    inner: ClassVar[tuple[str, ...]] = (BEGIN, END, SEPARATOR)
    calls: ClassVar[TaggedCalls]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a section. Raises: MalformedToolCall"""
        return self.calls.parse(body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls as far as they are written. Raises: MalformedToolCall"""
        return self.calls.so_far(body)

    def forms(self, call: Form, most: int | None) -> Form:
        """Return the text of a section."""
        return sequence(SECTION.start, divided(call, self.between, most), SECTION.end)

    between: ClassVar[str] = ""
