"""Thinking between <mm:think> tags, as MiniMax-M3 writes it.

Source: the chat template of MiniMax-M3, which opens the block in the prompt, closes it there, or
leaves it to the model.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples


class MinimaxM3(ThinkTags):
    """<mm:think> ... </mm:think> before the answer."""

    info = Info(
        summary="thinking between <mm:think> tags (MiniMax-M3)",
        source="https://huggingface.co/MiniMaxAI/MiniMax-M3",
    )
    auto_rank = 2
    markers: ClassVar[Markers] = Markers(start="<mm:think>", end="</mm:think>", ends_with_call=True)
    layout: ClassVar[tuple[str, ...]] = (markers.end,)
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(markers),
        Sample(text=f"{markers.end}It is 2.", content="It is 2."),
    )
