"""Tool calls of MiniMax-M1: JSON objects, one a line, between <tool_calls> tags.

Source: the function-call guide in the model card of MiniMax-M1.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned


class Minimax(JsonToolParser):
    """One {"name": ..., "arguments": {...}} a line in each region."""

    info = Info(
        summary="JSON objects in lines between <tool_calls> tags (MiniMax-M1)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M1-80k",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="<tool_calls>", end="</tool_calls>"),)
    calls: ClassVar[JsonCalls] = JsonCalls(dividers="")
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<tool_calls>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_calls>',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='I look it up.\n<tool_calls>\n{"name": "now", "arguments": {}}\n{"name": "find", '
            '"arguments": {"q": "</tool_calls> \\"x\\" \\u00e9 ☃"}}\n</tool_calls>',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "</tool_calls> \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(
            text="<tool_calls>none</tool_calls> and on",
            content="<tool_calls>none</tool_calls> and on",
        ),
        Sample(
            text='<tool_calls>\n{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<tool_calls>", "<beginning_of_sentence>")

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat("<tool_calls>\n", separated(call, "\n", most), "\n</tool_calls>")
