"""PythonToolParser: the functions of families whose regions hold Python calls and nothing else.

Knows no family: a parser adds its markers, how calls are combined, and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.python_calls import PythonCalls


class PythonToolParser(ToolParser):
    """`opening` and `closing` are written around the calls: empty if no marker is needed."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[PythonCalls] = PythonCalls()
    opening: ClassVar[str] = ""
    closing: ClassVar[str] = ""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        return self.calls.parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls as far as whole arguments are written. Raises: MalformedToolCall"""
        return self.calls.so_far(body, tools)

    def region_end(self, body: str) -> int | None:
        """Return where the list ends."""
        return self.calls.end(body)

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call."""
        return self.calls.constraint(tool)

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of one to `most` calls."""
        return concat(self.opening, self.calls.calls_constraint(call, most), self.closing)
