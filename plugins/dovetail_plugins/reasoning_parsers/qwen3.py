"""Thinking between <think> tags, as Qwen3 writes it.

Source: the chat template of Qwen3; with thinking off the prompt itself closes an empty block.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser


class Qwen3(ReasoningParser):
    """<think> ... </think> before the answer; the prompt may have opened the block."""

    info = Info(
        summary="thinking between <think> tags (Qwen3)",
        source="https://huggingface.co/Qwen/Qwen3-8B",
    )
    markers: ClassVar[Markers] = Markers(start="<think>", end="</think>", ends_with_call=True)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="<think>\nTwo.\n</think>\n\nIt is 2.", reasoning="Two.", content="It is 2."),
        Sample(text="It is 2.", content="It is 2."),
        Sample(text="A <think> tag", content="A <think> tag"),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if not isinstance(query, str) or cls.markers.end in query:
            return []
        return ["the chat template does not mention </think>"]
