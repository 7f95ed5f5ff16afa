"""Tool calls of FunctionGemma: call:name{key:value}, strings between <escape> marks.

Source: the formatting notes of FunctionGemma (functiongemma-270m-it). Knows no streaming and no
HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.interfaces.form import Form
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.syntax.marked_calls import MarkedCalls
from dovetail.syntax.templates import unmentioned

START = "<start_function_call>"
END = "<end_function_call>"
MARK = "<escape>"
_CALLS = MarkedCalls(head="call:", mark=MARK)


class FunctionGemma(ToolParser):
    """call:name{key:<escape>text<escape>,key:2} in each region."""

    info = Info(
        summary="call:NAME{...} between <start_function_call> tags (FunctionGemma)",
        source="https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices",
    )
    capabilities = frozenset({"parallel_calls", "streams", "has_form"})
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    inner: ClassVar[tuple[str, ...]] = (MARK,)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{START}call:weather{{city:{MARK}Paris{MARK},days:2}}{END}",
            calls=(ToolCall(name="weather", arguments='{"city": "Paris", "days": 2}'),),
        ),
        Sample(
            text=f'I look it up.{START}call:now{{}}{END}{START}call:find{{q:{MARK}"x" \\ }} {END} '
            f"☃{MARK},o:{{a:[1.50,true,{MARK}b{MARK}]}}}}{END}",
            content="I look it up.",
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(
                    name="find",
                    arguments=f'{{"q": "\\"x\\" \\\\ }} {END} ☃", '
                    '"o": {"a": [1.50, true, "b"]}}',
                ),
            ),
        ),
        Sample(text=f"{START}none{END} and on", content=f"{START}none{END} and on"),
        Sample(
            text=f"{START}call:weather{{days:2,city:{MARK}Pa",
            calls=(ToolCall(name="weather", arguments='{"days": 2'),),
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, (START, "<start_function_declaration>"))

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call in a region. Raises: MalformedToolCall"""
        return _CALLS.parse(body)

    def so_far(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the call as far as whole arguments are written."""
        return _CALLS.so_far(body)

    def form(self, tool: Tool) -> Form | None:
        """Return the text of one call."""
        return _CALLS.form(tool, before=START, after=END)
