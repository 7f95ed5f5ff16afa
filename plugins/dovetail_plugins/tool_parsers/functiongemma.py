"""Tool calls of FunctionGemma: call:name{key:value}, strings between <escape> marks.

Source: the formatting notes of FunctionGemma (functiongemma-270m-it).
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.text import Markers, Sample, ToolCall
from dovetail.syntax.marked_calls import MarkedCalls
from dovetail.syntax.marked_parser import MarkedToolParser
from dovetail.syntax.templates import unmentioned

START = "<start_function_call>"
END = "<end_function_call>"
MARK = "<escape>"


class FunctionGemma(MarkedToolParser):
    """call:name{key:<escape>text<escape>,key:2} in each region."""

    info = Info(
        summary="call:NAME{...} between <start_function_call> tags (FunctionGemma)",
        source="https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices",
    )
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start=START, end=END),)
    inner: ClassVar[tuple[str, ...]] = (MARK,)
    calls: ClassVar[MarkedCalls] = MarkedCalls(head="call:", mark=MARK)
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
