"""XmlToolParser: the functions of families whose regions hold calls with a tag per parameter.

Knows no family: a parser adds its markers, tags and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.xml_params import XmlCalls


class XmlToolParser(ToolParser):
    """`calls` are the family's tags. `has_one_call`: a region holds one call, so `blank` is written
    between markers and call; else calls follow each other, divided by it."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[XmlCalls]
    has_one_call: ClassVar[bool] = False
    blank: ClassVar[str] = "\n"

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        return self.calls.parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        return self.calls.so_far(body, tools)

    def close(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a region that is over within a value. Raises: MalformedToolCall"""
        return self.calls.parse(body, tools, is_over=True)

    def arguments_constraint(self, tool: Tool) -> Constraint | None:
        """Return the tags of the arguments."""
        return self.calls.arguments(tool)

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call, with its markers if a region holds one call."""
        if not self.has_one_call:
            return self.calls.constraint(tool)
        region = self.markers[0]
        return self.calls.constraint(
            tool, start=region.start + self.blank, end=self.blank + region.end
        )

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of one to `most` calls."""
        if self.has_one_call:
            return separated(call, self.blank, most)
        region = self.markers[0]
        inside = separated(call, self.blank, most)
        return concat(region.start + self.blank, inside, self.blank + region.end)
