"""Thinking of DeepSeek-V3.1 and V3.2: only if the prompt opened it.

Source: the chat template of DeepSeek-V3.1; its variable "thinking" says which tag ends the prompt.
DeepSeek-V3.2 has none, but tells its model of a thinking_mode.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import UNTIL_CALL, ThinkTags


class DeepseekV3(ThinkTags):
    """The prompt ends with <think> or with </think>."""

    info = Info(
        summary="thinking if the prompt asks for it (DeepSeek-V3.1, V3.2)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V3.1",
    )
    auto_rank = 2
    markers: ClassVar[Markers] = UNTIL_CALL
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (
        "｜Assistant｜",
        ("set thinking", "if thinking", "not thinking", "thinking_mode"),
    )
