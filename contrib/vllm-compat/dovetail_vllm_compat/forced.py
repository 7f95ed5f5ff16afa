"""Calls that must be made: a JSON list, whatever the syntax of the parser.

vLLM holds a model to `[{"name": NAME, "parameters": {...}}]` where a request demands a call, and
reads that itself: a plugin file says nothing by which its own syntax could be enforced.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser


class ForcedCalls(JsonToolParser):
    """A list of {"name": ..., "parameters": {...}} that is the whole answer."""

    info = Info(summary="a JSON list of calls that a request demands")
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="[", opens_answer=True, is_body=True),)
    calls: ClassVar[JsonCalls] = JsonCalls(arguments=("parameters", "arguments"))
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='[{"name": "now", "parameters": {}}]',
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
    )

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a list of calls."""
        return concat("[", separated(call, ", ", most), "]")
