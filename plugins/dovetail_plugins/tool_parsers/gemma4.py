"""Tool calls of Gemma 4: call:name{key:value}, strings between marks.

Source: the chat template of gemma-4-31B-it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.marked_calls import MarkedCalls
from dovetail_plugins.syntax.marked_parser import MarkedToolParser, marked_samples
from dovetail_plugins.syntax.templates import unmentioned

REGION = Markers(start="<|tool_call>", end="<tool_call|>")
MARK = '<|"|>'


class Gemma4(MarkedToolParser):
    """call:name{key:<|"|>text<|"|>,key:2} in each region."""

    info = Info(
        summary="call:NAME{...} between <|tool_call> tags (Gemma 4)",
        source="https://huggingface.co/google/gemma-4-31B-it",
    )
    auto_rank = 1
    markers: ClassVar[tuple[Markers, ...]] = (REGION,)
    inner: ClassVar[tuple[str, ...]] = (MARK,)
    calls: ClassVar[MarkedCalls] = MarkedCalls(head="call:", mark=MARK)
    samples: ClassVar[tuple[Sample, ...]] = marked_samples(REGION, MARK, inner_key=f"{MARK}a{MARK}")

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, REGION.start, MARK)
