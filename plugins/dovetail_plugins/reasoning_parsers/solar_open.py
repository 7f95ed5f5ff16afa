"""Thinking as a separate message, as Solar Open writes it.

Source: the chat template of Solar-Open-100B; with little effort the prompt holds an empty one.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples
from dovetail_plugins.tool_parsers._solar_open import END, LAYOUT


class SolarOpen(ThinkTags):
    """<|think|> ... <|end|><|begin|>assistant<|content|> before the answer."""

    info = Info(
        summary="thinking between <|think|> and <|end|> (Solar Open)",
        source="https://huggingface.co/upstage/Solar-Open-100B",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<|think|>", end=END)
    layout: ClassVar[Layout] = LAYOUT
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(markers),
        Sample(
            text="<|think|>Two.<|end|><|begin|>assistant<|content|>It is 2.<|end|>",
            reasoning="Two.",
            content="It is 2.",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<|content|>", "<|begin|>")
