"""Thinking that ends with </think>, as DeepSeek-R1 and its distillations write it.

Source: the chat template of DeepSeek-R1, which opens the block in the prompt in its newer form and
in its older one leaves that to the model, which may not do it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser


class DeepseekR1(ReasoningParser):
    """Everything before </think> is thinking, with or without the opening tag."""

    info = Info(
        summary="reasoning up to </think>, with or without <think> (DeepSeek-R1)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-R1",
    )
    capabilities = frozenset({"implicit_start"})
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(start="<think>", end="</think>")
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(text="Two.\n</think>\n\nIt is 2.", reasoning="Two.", content="It is 2."),
        Sample(text="<think>\nTwo.\n</think>\nIt is 2.", reasoning="Two.", content="It is 2."),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        if not isinstance(query, str):
            return []
        if "｜Assistant｜" not in query:
            return ["the chat template is not DeepSeek's"]
        return [] if cls.markers.end in query else ["the chat template does not mention </think>"]

    def starts_inside(self, prompt: str) -> bool:
        """Return whether thinking is open: always, unless the prompt closed it at its end."""
        return not prompt.rstrip().endswith(self.markers.end)
