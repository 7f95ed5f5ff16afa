"""Reasoning between think tags of Kimi K3's own markup.

Source: the format that Kimi-K3's encoding_k3.py defines, which opens the block in the prompt.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ThinkTags, tagged_samples
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers._kimi_k3 import CLOSE, LAYOUT, OPEN, SEP


class KimiK3(ThinkTags):
    """<|open|>think<|sep|> ... <|close|>think<|sep|> before the answer."""

    info = Info(
        summary="thinking between <|open|>think tags (Kimi K3)",
        source="https://huggingface.co/moonshotai/Kimi-K3",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(
        start=f"{OPEN}think{SEP}", end=f"{CLOSE}think{SEP}", ends_with_call=True
    )
    layout: ClassVar[tuple[str, ...]] = LAYOUT
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(markers),
        Sample(
            text=f"{markers.start}Two.{markers.end}{OPEN}response{SEP}It is 2.{CLOSE}response{SEP}"
            f"{CLOSE}message{SEP}",
            reasoning="Two.",
            content="It is 2.",
        ),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, OPEN, SEP, ("open_tag('think", cls.markers.start))
