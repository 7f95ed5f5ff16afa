"""Tool calls of OLMo 3: Python calls, one a line, between <function_calls> tags.

Source: the chat template of Olmo-3-7B-Instruct.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.python_calls import PythonCalls
from dovetail_plugins.syntax.python_parser import PythonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "<function_calls>"
END = "</function_calls>"


class Olmo3(PythonToolParser):
    """name(key=value, ...) in each line."""

    info = Info(
        summary="Python calls in lines between <function_calls> tags (OLMo 3)",
        source="https://huggingface.co/allenai/Olmo-3-7B-Instruct",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    calls: ClassVar[PythonCalls] = PythonCalls(is_list=False, is_tagged=True)
    opening: ClassVar[str] = f"{START}\n"
    closing: ClassVar[str] = f"\n{END}"
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{START}\nweather(city='Paris', days=2)\n{END}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.\n{START}\nnow()\nfind(q="\\"x\\" {END} \\u00e9 ☃", o=null)\n{END}',
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "\\"x\\" {END} é ☃", "o": null}}'),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f"{START}\nweather(days=2, city='Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, START)
