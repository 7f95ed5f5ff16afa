"""Tool calls of InternLM2 and 2.5: a JSON object between action tags.

Source: the tool-calling notes of InternLM2's chat format. The tags are special tokens; a region
with <|interpreter|> holds code and is not a call.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "<|action_start|><|plugin|>"
END = "<|action_end|>"


class Internlm(JsonToolParser):
    """{"name": ..., "parameters": {...}} in each region."""

    info = Info(
        summary="a JSON object between action tags (InternLM2.5)",
        source="https://huggingface.co/internlm/internlm2_5-7b-chat",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    calls: ClassVar[JsonCalls] = JsonCalls(arguments=("parameters", "arguments"))
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}\n{{"name": "weather", "parameters": {{"city": "Paris"}}}}{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f'I look it up.{START}{{"name": "now", "parameters": {{}}}}{END}\n'
            f'{START}{{"name": "find", "parameters": {{"q": "{END} \\"x\\" \\u00e9 ☃"}}}}{END}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{END} \\"x\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f'{START}{{"name": "weather", "parameters": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<|plugin|>")

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return self.calls.constraint(tool, before=f"{START}\n", after=END)
