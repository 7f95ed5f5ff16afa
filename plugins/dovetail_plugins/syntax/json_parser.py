"""JsonToolParser: the functions of families whose regions hold JSON calls and nothing else.

Knows no family: a parser adds its markers, keys, samples and constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.json_calls import JsonCalls, bare_calls


class JsonToolParser(ToolParser):
    """`calls` says which keys the family uses. `prefix` is what an opening marker that belongs to
    the body has before the JSON text."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[JsonCalls] = JsonCalls()
    prefix: ClassVar[str] = ""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        return self.calls.parse(body.removeprefix(self.prefix))

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        return self.calls.so_far(body.removeprefix(self.prefix))

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the JSON calls that an answer is. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)

    def region_end(self, body: str) -> int | None:
        """Return where the JSON text ends."""
        if self.prefix.startswith(body):
            return None
        text = body.removeprefix(self.prefix)
        end = self.calls.end(text)
        return None if end is None else len(body) - len(text) + end

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call: its object."""
        return self.calls.constraint(tool)
