"""Thinking between inner tags, as Apertus writes it.

Source: the chat template of Apertus-8B-Instruct-2509.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class Apertus(ThinkTags):
    """<|inner_prefix|> ... <|inner_suffix|> before the answer."""

    info = Info(
        summary="thinking between <|inner_prefix|> tags (Apertus)",
        source="https://huggingface.co/swiss-ai/Apertus-8B-Instruct-2509",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<|inner_prefix|>", end="<|inner_suffix|>")
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(markers)
