"""MarkedToolParser: the functions of families whose regions hold one call with marked strings.

Knows no family: a parser adds its markers, the mark and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.constraint import Constraint
from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.syntax.marked_calls import MarkedCalls


class MarkedToolParser(ToolParser):
    """`calls` says what is before a call's name and which mark its strings have."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[MarkedCalls]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        return self.calls.parse(body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call as far as whole arguments are written."""
        return self.calls.so_far(body)

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call."""
        region = self.markers[0]
        return self.calls.constraint(tool, before=region.start, after=region.end)
