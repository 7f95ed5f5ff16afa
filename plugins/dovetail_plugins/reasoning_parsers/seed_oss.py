"""Thinking between <seed:think> tags, as Seed-OSS writes it.

Source: the chat template of Seed-OSS-36B-Instruct.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class SeedOss(ThinkTags):
    """<seed:think> ... </seed:think> before the answer."""

    info = Info(
        summary="thinking between <seed:think> tags (Seed-OSS)",
        source="https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<seed:think>", end="</seed:think>")
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ()
