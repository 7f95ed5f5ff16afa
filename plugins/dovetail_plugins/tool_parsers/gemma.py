"""Tool calls of Gemma 3 as its function-calling guide prompts them: Python in a tool_code fence.

Source: Google's guide to function calling with Gemma and the Gemma 3 launch notes. The chat
template says nothing of tools, so this is never chosen automatically.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.python_calls import PythonCalls
from dovetail_plugins.syntax.python_parser import PythonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "```tool_code"
END = "```"


class Gemma(PythonToolParser):
    """name(key=value, ...), or the same within print(), in each line."""

    info = Info(
        summary="Python calls in a tool_code fence (Gemma 3)",
        source="https://ai.google.dev/gemma/docs/capabilities/function-calling",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    calls: ClassVar[PythonCalls] = PythonCalls(is_list=False, wrapper="print")
    opening: ClassVar[str] = f"{START}\n"
    closing: ClassVar[str] = f"\n{END}"
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}\nweather(city="Paris", days=2)\n{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.\n{START}\nprint(now())\nfind(q="\\"x\\" {END} \\u00e9 ☃")\n{END}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "\\"x\\" {END} é ☃"}}'),
            ),
        ),
        Sample(
            text=f"{START}\nx = 1 + 2\n{END} is code", content=f"{START}\nx = 1 + 2\n{END} is code"
        ),
        Sample(
            text=f'{START}\nweather(days=2, city="Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "tool_code")
