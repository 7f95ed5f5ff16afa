"""TaggedToolParser: the functions of families that write one section of calls between tags.

Knows no family: a parser adds its section's markers, its tags, samples and the constraint of a
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.json_calls import bare_calls
from dovetail_plugins.syntax.tagged_calls import TaggedCalls


class TaggedToolParser(ToolParser):
    """`calls` are the family's tags, `between` the text between two calls."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[TaggedCalls]
    between: ClassVar[str] = ""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a section. Raises: MalformedToolCall"""
        return self.calls.parse(body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        return self.calls.so_far(body)

    def region_end(self, body: str) -> int | None:
        """Return where a call outside a section ends."""
        return self.calls.first_end(body)

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the JSON calls that an answer is. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a section of calls."""
        section = self.markers[0]
        return concat(section.start, separated(call, self.between, most), section.end)
