"""Thinking between <longcat_think> tags, as LongCat-Flash writes it.

Source: the model cards of LongCat-Flash-Thinking and LongCat-Flash-Lite; the chat template opens
the block in the prompt.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class Longcat(ThinkTags):
    """<longcat_think> ... </longcat_think> before the answer."""

    info = Info(
        summary="thinking between <longcat_think> tags (LongCat)",
        source="https://huggingface.co/meituan-longcat/LongCat-Flash-Thinking",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<longcat_think>", end="</longcat_think>")
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)
