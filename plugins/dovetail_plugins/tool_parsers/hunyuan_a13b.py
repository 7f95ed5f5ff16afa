"""Tool calls of Hunyuan-A13B: a JSON list between <tool_calls> tags.

Source: the chat template of Hunyuan-A13B-Instruct.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned


class HunyuanA13b(JsonToolParser):
    """A list of {"name": ..., "arguments": {...}} in each region."""

    info = Info(
        summary="a JSON list between <tool_calls> tags (Hunyuan-A13B)",
        source="https://huggingface.co/tencent/Hunyuan-A13B-Instruct",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="<tool_calls>", end="</tool_calls>"),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}}]</tool_calls>',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='I look it up.\n<tool_calls>[{"name": "now", "arguments": {}}, {"name": "find", '
            '"arguments": {"q": "</tool_calls> \\"x\\" \\u00e9 ☃"}}]</tool_calls>',
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
            text='<tool_calls>[{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<tool_calls>", ("<|extra_0|>", "<|startoftext|>", "hunyuan"))

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat("<tool_calls>[", separated(call, ", ", most), "]</tool_calls>")
