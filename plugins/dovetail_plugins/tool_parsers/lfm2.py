"""Tool calls of LFM2: a list of Python calls between tags, or of JSON objects on request.

Source: the model card of LFM2-1.2B (its section on tool use); some chat templates of LFM2.5 mention
no tag of a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.json_calls import JsonCalls, bare_calls
from dovetail_plugins.syntax.python_calls import PythonCalls
from dovetail_plugins.syntax.python_parser import PythonToolParser
from dovetail_plugins.syntax.templates import unmentioned

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"
_JSON = JsonCalls()
_UNLISTED = PythonCalls(is_list=False, is_tagged=True)
_IS_JSON = re.compile(r"\s*\[?\s*\{")


class Lfm2(PythonToolParser):
    """[name(key=value, ...), ...] in each region."""

    info = Info(
        summary="a list of Python calls between <|tool_call_start|> tags (LFM2)",
        source="https://huggingface.co/LiquidAI/LFM2-1.2B",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    calls: ClassVar[PythonCalls] = PythonCalls(is_tagged=True)
    opening: ClassVar[str] = START
    closing: ClassVar[str] = END
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f'{START}[weather(city="Paris", days=2)]{END}',
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.{START}[now(), find(q="\\"x\\" {END} \\u00e9 ☃")]{END} and on',
            content="I look it up. and on",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments=f'{{"q": "\\"x\\" {END} é ☃"}}'),
            ),
        ),
        Sample(
            text=f'{START}[{{"name": "find", "arguments": {{"q": "{END}"}}}}]{END}',
            calls=(ToolCall(name="find", arguments=f'{{"q": "{END}"}}'),),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f'{START}[weather(days=2, city="Pa',
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<|im_start|>", (START, "<|tool_list_start|>", "List of tools: "))

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in a region. Raises: MalformedToolCall"""
        return _JSON.parse(body) if _IS_JSON.match(body) else self._python(body).parse(body, tools)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls written so far. Raises: MalformedToolCall"""
        if _IS_JSON.match(body):
            return _JSON.so_far(body)
        return self._python(body).so_far(body, tools) if body.strip() else []

    def _python(self, body: str) -> PythonCalls:
        """Return the syntax of the calls: models may leave out the list's brackets."""
        return self.calls if body.lstrip().startswith("[") else _UNLISTED

    def bare(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the JSON calls that an answer is. Raises: MalformedToolCall, UnfinishedToolCall"""
        return bare_calls(text, tools)
