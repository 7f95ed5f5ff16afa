"""Thinking between <think> tags, as OLMo 3 Think writes it.

Source: the chat template of Olmo-3-7B-Think, which opens the block in the prompt.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags


class Olmo3(ThinkTags):
    """<think> ... </think> before the answer."""

    info = Info(
        summary="thinking between <think> tags (OLMo 3 Think)",
        source="https://huggingface.co/allenai/Olmo-3-7B-Think",
    )
    auto_rank = 1
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (("<functions>", "Olmo", "olmo"),)
