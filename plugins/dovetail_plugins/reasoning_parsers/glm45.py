"""Thinking between <think> tags, as GLM-4.5 writes it.

Source: the chat template of GLM-4.5; with thinking off the prompt itself holds an empty block.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import UNTIL_CALL, ThinkTags


class Glm45(ThinkTags):
    """<think> ... </think> before the answer."""

    info = Info(
        summary="thinking between <think> tags (GLM-4.5, GLM-4.6)",
        source="https://huggingface.co/zai-org/GLM-4.5",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = UNTIL_CALL
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("[gMASK]",)
