"""JsonToolParser: the functions of families whose regions hold JSON calls and nothing else.

Knows no family: a parser adds its markers, keys, samples and form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.syntax.json_calls import JsonCalls


class JsonToolParser(ToolParser):
    """`calls` says which keys the family uses, `opened` what an opening marker has taken away from
    the JSON text (a "[", say)."""

    capabilities = frozenset({"parallel_calls", "streams", "has_form"})
    calls: ClassVar[JsonCalls] = JsonCalls()
    opened: ClassVar[str] = ""

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        return self.calls.parse(self.opened + body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls as far as they are written. Raises: MalformedToolCall"""
        return self.calls.so_far(self.opened + body)

    def region_end(self, body: str) -> int | None:
        """Return where the JSON text is over."""
        end = self.calls.end(self.opened + body)
        return None if end is None else max(0, end - len(self.opened))
