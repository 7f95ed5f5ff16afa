"""Thinking between tags, and an answer between others, as Cohere's Command models write them.

Source: the chat templates of command-a-reasoning-08-2025 and of the models after it.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples
from dovetail_plugins.tool_parsers._cohere import LAYOUT


class CohereCommand(ThinkTags):
    """<|START_THINKING|> ... <|END_THINKING|> before the answer."""

    info = Info(
        summary="thinking between <|START_THINKING|> tags (Command A and later)",
        source="https://huggingface.co/CohereLabs/command-a-reasoning-08-2025",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<|START_THINKING|>", end="<|END_THINKING|>")
    layout: ClassVar[Layout] = LAYOUT
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(markers),
        Sample(
            text="<|START_THINKING|>Two.<|END_THINKING|><|START_RESPONSE|>It is 2.<|END_RESPONSE|>",
            reasoning="Two.",
            content="It is 2.",
        ),
        Sample(text="It is <co>2</co: 0:[1,2],1:[0]>.", content="It is 2."),
    )
