"""Thinking between [THINK] tags, as Magistral writes it.

Source: the chat template and system prompt of Magistral-Small-2507.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class Mistral(ThinkTags):
    """[THINK] ... [/THINK] before the answer."""

    info = Info(
        summary="thinking between [THINK] tags (Magistral)",
        source="https://huggingface.co/mistralai/Magistral-Small-2507",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="[THINK]", end="[/THINK]", ends_with_call=True)
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("[INST]",)
