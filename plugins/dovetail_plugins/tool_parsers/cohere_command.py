"""Tool calls of Cohere's Command models: a JSON list between action tags.

Source: the chat templates of command-a-reasoning-08-2025 and of the models after it, which write
text between other tags.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Layout, Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers._cohere import LAYOUT

START, END = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereCommand(JsonToolParser):
    """A list of {"tool_call_id": ..., "tool_name": ..., "parameters": {...}} in each region."""

    info = Info(
        summary="a JSON list between action tags (Command A and later)",
        source="https://huggingface.co/CohereLabs/command-a-reasoning-08-2025",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    layout: ClassVar[Layout] = LAYOUT
    calls: ClassVar[JsonCalls] = JsonCalls(name="tool_name", arguments=("parameters", "arguments"))
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": '
            f'{{"city": "Paris"}}}}\n]{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f"<|START_RESPONSE|>I look it up.<|END_RESPONSE|>{START}[\n    "
            '{"tool_call_id": "0", "tool_name": "now", "parameters": {}},\n    {"tool_call_id": "1"'
            f', "tool_name": "find", "parameters": {{"q": "{END} \\"x\\" \\u00e9 ☃"}}}}\n]{END}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{END} \\"x\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f'{START}[{{"tool_name": "weather", "parameters": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, START)

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat(f"{START}[\n    ", separated(call, ",\n    ", most), f"\n]{END}")
