"""Reasoning in a separate channel, as Gemma 4 writes it.

Source: the chat template of gemma-4-31B-it; with thinking off the prompt itself holds an empty one.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags

START, END = "<|channel>thought", "<channel|>"


class Gemma4(ThinkTags):
    """<|channel>thought ... <channel|>, again between other text if need be."""

    info = Info(
        summary="the thought channel (Gemma 4)",
        source="https://huggingface.co/google/gemma-4-31B-it",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start=START, end=END, may_reopen=True, ends_with_call=True)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text=f"{START}\nTwo.\n{END}It is 2.", reasoning="Two.", content="It is 2."),
        Sample(text="It is 2.", content="It is 2."),
        Sample(
            text=f"{START}\nOne.{END}I look. {START}\nTwo.{END}2",
            reasoning="One.Two.",
            content="I look. 2",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<|channel>", "<|turn>")
