"""Tool calls of Phi-4-mini: a JSON list after the word functools, or between tool_call tags.

Source: the model card of Phi-4-mini-instruct (its vocabulary has the tags) and the cookbook's tool
prompt ("prefix function calls with functools marker").
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned


class Phi4MiniJson(JsonToolParser):
    """functools[{"name": ..., "arguments": {...}}, ...]"""

    info = Info(
        summary="a JSON list after functools (Phi-4-mini)",
        source="https://huggingface.co/microsoft/Phi-4-mini-instruct",
    )
    markers: ClassVar[tuple[Markers, ...]] = (
        Markers(start="functools[", is_body=True),
        Markers(start="<|tool_call|>", end="<|/tool_call|>"),
    )
    prefix: ClassVar[str] = "functools"
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='functools[{"name": "weather", "arguments": {"city": "Paris"}}]',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text='I look it up. functools[{"name": "now", "arguments": {}}, {"name": "find", '
            '"arguments": {"q": "functools[ \\"x\\" \\u00e9 ☃"}}] and on',
            content="I look it up. and on",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "functools[ \\"x\\" \\u00e9 ☃"}'),
            ),
        ),
        Sample(
            text='<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(text="functools[0] is code", content="functools[0] is code"),
        Sample(
            text='functools[{"name": "weather", "arguments": {"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, ("functools", "<|tool|>"))

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a list of calls."""
        return concat("functools[", separated(call, ", ", most), "]")
