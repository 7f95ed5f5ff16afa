"""Thinking between <think> tags, as Kimi K2 Thinking writes it.

Source: the chat template of Kimi-K2-Thinking.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import UNTIL_CALL, ThinkTags


class KimiK2(ThinkTags):
    """<think> ... </think> before the answer."""

    info = Info(
        summary="thinking between <think> tags (Kimi K2 Thinking)",
        source="https://huggingface.co/moonshotai/Kimi-K2-Thinking",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = UNTIL_CALL
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<|im_middle|>",)
