"""Tool calls of granite-20b-functioncalling: a JSON object after each <function_call>.

Source: the model card of granite-20b-functioncalling.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "<function_call>"


class Granite20bFc(JsonToolParser):
    """{"name": ..., "arguments": {...}} in each region, which the object itself ends."""

    info = Info(
        summary="a JSON object after each <function_call> (granite-20b-functioncalling)",
        source="https://huggingface.co/ibm-granite/granite-20b-functioncalling",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<function_call> {"name": "weather", "arguments": {"city": "Paris"}}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='I look it up. <function_call> {"name": "now", "arguments": {}} <function_call> '
            '{"name": "find", "arguments": {"q": "<function_call> \\"x\\" \\u00e9 ☃"}} and on',
            content="I look it up. and on",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "<function_call> \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(text="<function_call> they say", content="<function_call> they say"),
        Sample(
            text='<function_call>{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, START)

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return self.calls.constraint(tool, before=f"{START} ")
