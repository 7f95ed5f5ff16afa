"""MarkedToolParser: the functions of families whose regions hold one call with marked strings.

A parser adds its markers, the mark and how its samples write keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail_plugins.syntax.marked_calls import MarkedCalls


class MarkedToolParser(ToolParser):
    """`calls` has the text before a call's name and the mark of its strings."""

    capabilities = frozenset({"parallel_calls", "streams", "constrains_calls"})
    calls: ClassVar[MarkedCalls]

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        return self.calls.parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call as far as whole arguments are written."""
        return self.calls.so_far(body, tools)

    def constraint(self, tool: Tool) -> Constraint | None:
        """Return the text of one call."""
        region = self.markers[0]
        return self.calls.constraint(tool, before=region.start, after=region.end)


def marked_samples(region: Markers, mark: str, *, inner_key: str) -> tuple[Sample, ...]:
    """Return the samples of a family. `inner_key`: how it writes the key "a" of an object in an
    argument."""
    start, end = region.start, region.end
    return (
        Sample(
            text=f"{start}call:weather{{city:{mark}Paris{mark},days:2}}{end}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.{start}call:now{{}}{end}{start}call:find{{q:{mark}"x" \\ }} {end} '
            f"☃{mark},o:{{{inner_key}:[1.50,true,{mark}b{mark}]}}}}{end}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ }} {end} ☃", '
                    '"o": {"a": [1.50, true, "b"]}}',
                ),
            ),
        ),
        Sample(text=f"{start}none{end} and on", content=f"{start}none{end} and on"),
        Sample(
            text=f"{start}call:weather{{days:2,city:{mark}Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )
