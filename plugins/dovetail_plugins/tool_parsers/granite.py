"""Tool calls of Granite 3 and 4: a JSON list after <|tool_call|>, or after <tool_call>.

Source: the chat templates of Granite 3.0 to 3.3 (a list, no closing tag) and 4.0 (an object between
tags).
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned


class Granite(JsonToolParser):
    """A list of {"name": ..., "arguments": {...}}, or one such object, in each region."""

    info = Info(
        summary="a JSON list after <|tool_call|> (Granite 3 and 4)",
        source="https://huggingface.co/ibm-granite/granite-3.3-8b-instruct",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (
        Markers(start="<|tool_call|>"),
        Markers(start="<tool_call>", end="</tool_call>"),
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='I look it up.\n<|tool_call|> [{"name": "now", "arguments": {}}, {"name": "find", '
            '"arguments": {"q": "<|tool_call|> \\"x\\" \\u00e9 ☃"}}]',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "<|tool_call|> \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(
            text='<tool_call>[{"name": "now", "arguments": {}}]',
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(
            text='<tool_call>\n{"name": "now", "arguments": {"z": "</tool_call>"}}\n</tool_call>',
            calls=(ToolCall(name="now", arguments='{"z": "</tool_call>"}'),),
        ),
        Sample(text="<|tool_call|> they say", content="<|tool_call|> they say"),
        Sample(
            text='<|tool_call|>[{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<|start_of_role|>", ("<|tool_call|>", "<tool_call>"))

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a list of calls."""
        return concat("<|tool_call|>[", separated(call, ", ", most), "]")
