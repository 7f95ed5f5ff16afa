"""Thinking between <think> tags, as Hunyuan 3 (Hy3) writes it.

Source: the chat template of Hy3-preview. Checkpoints after it write every tag with a suffix of
their own, which their vocabulary has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.reasoning_parsers._think import UNTIL_CALL, ThinkTags
from dovetail_plugins.syntax.tag_suffixes import suffix_of, suffixed, variant
from dovetail_plugins.syntax.templates import unmentioned


class HyV3(ThinkTags):
    """<think> ... </think>, each with the checkpoint's suffix."""

    info = Info(
        summary="thinking between <think> tags, with a suffix or not (Hy3)",
        source="https://huggingface.co/tencent/Hy3-preview",
    )
    auto_rank = 2
    markers: ClassVar[Markers] = UNTIL_CALL

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        tags = (("</think>", "</think:"), ("<tool_sep>", "<tool_sep:"))
        return unmentioned(query, *tags)

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for the tags that the vocabulary has: their suffix, if any."""
        suffix = suffix_of(tokenizer, "think")
        if not suffix:
            return self
        start, end = self.markers.start, self.markers.end
        markers = replace(self.markers, start=suffixed(start, suffix), end=suffixed(end, suffix))
        return variant(type(self), markers=markers)(self.options)
