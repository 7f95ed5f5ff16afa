"""Tool calls as one JSON object between <tool_call> tags.

Source: the chat templates of Hermes 2 Pro and Qwen 2.5/3.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

XML_TAGS = ("<function=", "<arg_key>", "<parameter=")


class Hermes(JsonToolParser):
    """{"name": ..., "arguments": {...}} in each region."""

    info = Info(
        summary="JSON objects between <tool_call> tags (Hermes, Qwen)",
        source="https://github.com/NousResearch/Hermes-Function-Calling",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="<tool_call>", end="</tool_call>"),)
    calls: ClassVar[JsonCalls] = JsonCalls()
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
            calls=(ToolCall(name="add", arguments='{"a": 1, "b": 2}'),),
        ),
        Sample(
            text='Let me see.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n'
            '<tool_call>{"arguments": {"q": "caf\\u00e9 \\"}</tool_call>\\""}, "name": "find"}'
            "</tool_call>",
            content="Let me see.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "caf\\u00e9 \\"}</tool_call>\\""}'),
            ),
        ),
        Sample(
            text="<tool_call>not a call</tool_call> and on",
            content="<tool_call>not a call</tool_call> and on",
        ),
        Sample(
            text='<tool_call>\n{"name": "add", "arguments": {"a": [1, {"b": "}]',
            calls=(ToolCall(name="add", arguments='{"a": [1, {"b": "}]'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if isinstance(query, str) and any(tag in query for tag in XML_TAGS):
            return ["the chat template writes arguments as XML within <tool_call>"]
        return unmentioned(query, "<tool_call>", "arguments")

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return self.calls.constraint(tool, before="<tool_call>\n", after="\n</tool_call>")
