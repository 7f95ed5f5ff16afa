"""Thinking that ends with </think>, as Step3 writes it.

Source: the chat template of step3, which opens the block in the prompt.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ImplicitThink


class Step3(ImplicitThink):
    """Everything before </think> is thinking."""

    info = Info(
        summary="thinking that may begin without <think> (Step3)",
        source="https://huggingface.co/stepfun-ai/step3",
    )
    auto_rank = 1
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<steptml:",)
