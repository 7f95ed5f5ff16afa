"""Thinking that ends with </think>, as MiniMax-M2 writes it.

Source: the chat template of MiniMax-M2, which opens the block in the prompt.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import UNTIL_CALL, ImplicitThink


class MinimaxM2(ImplicitThink):
    """Everything before </think> is thinking."""

    info = Info(
        summary="thinking that may begin without <think> (MiniMax-M2)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M2",
    )
    auto_rank = 2
    markers: ClassVar[Markers] = UNTIL_CALL
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("]~b]",)
