"""Tool calls of GigaChat 3: a turn of the role "function call" with a JSON object.

Source: the chat template of GigaChat3-10B-A1.8B; that of 3.1 has a special token before the call.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls
from dovetail_plugins.syntax.json_parser import JsonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "function call<|role_sep|>"
TOKEN = "<|function_call|>"
OVER = "<|message_sep|>"


class GigaChat3(JsonToolParser):
    """{"name": ..., "arguments": {...}} in a separate turn."""

    info = Info(
        summary="a JSON object in a turn of the role function call (GigaChat 3)",
        source="https://huggingface.co/ai-sage/GigaChat3-10B-A1.8B",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START), Markers(start=TOKEN))
    layout: ClassVar[tuple[str, ...]] = (OVER,)
    calls: ClassVar[JsonCalls] = JsonCalls()
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}\n{{"name": "weather", "arguments": {{"city": "Paris"}}}}{OVER}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris"}'),),
        ),
        Sample(
            text=f'I look it up.{OVER}\n\n{START}\n{{"name": "now", "arguments": {{}}}}{OVER}\n\n'
            f'{START}{{"name": "find", "arguments": {{"q": "{START} \\"x\\" \\u00e9 ☃"}}}}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "{START} \\"x\\" \\u00e9 ☃"}}'),
            ),
        ),
        Sample(
            text=f'{TOKEN}{{"name": "now", "arguments": {{}}}}{OVER}',
            calls=(ToolCall(name="now", arguments="{}"),),
        ),
        Sample(text=f"{START} they say", content=f"{START} they say"),
        Sample(
            text=f'{START}\n{{"name": "weather", "arguments": {{"city": "Pa',
            calls=(ToolCall(name="weather", arguments='{"city": "Pa'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<|role_sep|>", ("function call", TOKEN))

    def constraint(self, tool: Tool) -> Constraint:
        """Return the text of one call."""
        return self.calls.constraint(tool, before=f"{START}\n", after=OVER)
