"""Thinking of gpt-oss: messages of the analysis channel in the harmony format.

Source: OpenAI's description of the harmony format. Messages to the user in the commentary channel
are content, like the final channel.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags
from dovetail_plugins.tool_parsers._harmony import ANALYSIS, END, LAYOUT, MESSAGE


class OpenAiGptOss(ThinkTags):
    """<|channel|>analysis<|message|> ... <|end|>, again between other messages if need be."""

    info = Info(
        summary="the analysis channel of the harmony format (gpt-oss)",
        source="https://cookbook.openai.com/articles/openai-harmony",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start=ANALYSIS, end=END, may_reopen=True)
    layout: ClassVar[tuple[str, ...]] = LAYOUT
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text=f"{ANALYSIS}Two.{END}<|start|>assistant<|channel|>final{MESSAGE}It is 2."
            "<|return|>",
            reasoning="Two.",
            content="It is 2.",
        ),
        Sample(text="It is 2.", content="It is 2."),
        Sample(
            text=f"{ANALYSIS}One.{END}<|start|>assistant<|channel|>commentary{MESSAGE}I look. {END}"
            f"<|start|>assistant{ANALYSIS}Two.{END}<|start|>assistant<|channel|>final{MESSAGE}2",
            reasoning="One.Two.",
            content="I look. 2",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<|channel|>", "analysis")
