"""Thinking between tags that name its effort, as K2 Horizon writes it.

Source: the chat template of IFM's K2-Horizon models, which opens one of the tags in the prompt.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples

PAIRS = tuple(
    Markers(start=f"<ifm|{word}>", end=f"</ifm|{word}>")
    for word in ("think", "think_fast", "think_faster")
)


class K2Horizon(ThinkTags):
    """<ifm|think> ... </ifm|think>, or think_fast or think_faster with less effort."""

    info = Info(
        summary="thinking between <ifm|think> tags, of any effort (K2 Horizon)",
        source="https://huggingface.co/IFM/K2-Horizon-7B",
    )
    auto_rank = 2
    markers: ClassVar[Markers] = PAIRS[0]
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)

    def markers_in(self, prompt: str) -> Markers:
        """Return the pair that the prompt opened last."""
        return max(PAIRS, key=lambda pair: prompt.rfind(pair.start))
