"""Thinking between two sentences, as Granite 3.2 writes it.

Source: the chat template of granite-3.2-8b-instruct.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class Granite(ThinkTags):
    """Here is my thought process: ... Here is my response: ..."""

    info = Info(
        summary="thinking after a sentence (Granite 3.2)",
        source="https://huggingface.co/ibm-granite/granite-3.2-8b-instruct",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(
        start="Here is my thought process:", end="Here is my response:"
    )
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ()
