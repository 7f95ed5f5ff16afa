"""ReasoningParser: how a model family marks its thinking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from dovetail.interfaces.answer_reader import AnswerQuery, ReadingPlan
from dovetail.interfaces.data.text import Layout, Markers, Sample
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.tokenizer import Tokenizer


class ReasoningParser(Plugin):
    """Immutable and shared by all requests. Core finds the regions by `markers`.

    `layout` are texts and tags that are never content (<answer>, for example).
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "implicit_start": "reasoning may begin without the opening marker",
    }
    markers: ClassVar[Markers]
    layout: ClassVar[Layout] = ()
    samples: ClassVar[tuple[Sample, ...]] = ()

    def __init__(self, options: Any) -> None:
        self.options = options

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for text of this tokenizer. The default works for any tokenizer.

        Raises: ConfigError if the tokenizer lacks what the syntax needs.
        """
        return self

    def reads(self, query: AnswerQuery) -> ReadingPlan | None:
        """Return how the parser reads a request's answers itself, or None (the default): core reads
        them by the markers. With a plan, `markers` without texts mean that none are known."""
        return None

    def markers_in(self, prompt: str) -> Markers:
        """Return the markers of the thinking that follows a rendered prompt. The default: the same
        for every prompt."""
        return self.markers

    def starts_inside(self, prompt: str) -> bool:
        """Return whether the rendered prompt leaves the model inside a thinking region.

        The default: the last opening marker in the prompt is not followed by a closing one.
        """
        markers = self.markers_in(prompt)
        opened = prompt.rfind(markers.start)
        return opened >= 0 and prompt.find(markers.end, opened) < 0
