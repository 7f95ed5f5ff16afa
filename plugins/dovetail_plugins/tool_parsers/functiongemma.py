"""Tool calls of FunctionGemma: call:name{key:value}, strings between <escape> marks.

Source: the formatting notes of FunctionGemma (functiongemma-270m-it).
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.marked_calls import MarkedCalls
from dovetail_plugins.syntax.marked_parser import MarkedToolParser, marked_samples
from dovetail_plugins.syntax.templates import unmentioned

REGION = Markers(start="<start_function_call>", end="<end_function_call>")
MARK = "<escape>"


class FunctionGemma(MarkedToolParser):
    """call:name{key:<escape>text<escape>,key:2} in each region."""

    info = Info(
        summary="call:NAME{...} between <start_function_call> tags (FunctionGemma)",
        source="https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices",
    )
    markers: ClassVar[tuple[Markers, ...]] = (REGION,)
    inner: ClassVar[tuple[str, ...]] = (MARK,)
    calls: ClassVar[MarkedCalls] = MarkedCalls(head="call:", mark=MARK)
    samples: ClassVar[tuple[Sample, ...]] = marked_samples(REGION, MARK, inner_key="a")

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, (REGION.start, "<start_function_declaration>"))
