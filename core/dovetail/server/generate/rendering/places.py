"""MediaPlaces: media marks in the text of messages, for chat templates that support only text.

The template renders marks that no client can forge. Afterwards each mark is replaced by the model's
own words for media, so that a client's copy of these words stays plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlaces:
    """The text that represents media of each kind in a prompt (`words`; empty: the model takes
    none). `interleaves`: media stay at their places in a message; else they come first."""

    words: Mapping[str, str]
    interleaves: bool = False
    secret: str = field(default_factory=lambda: secrets.token_hex(8))

    def joined(self, parts: Sequence[Mapping[str, str]]) -> str:
        """Return the parts of a message as one text with marks."""
        texts = [
            part["text"] if part["type"] == "text" else self._mark(part["type"]) for part in parts
        ]
        if not self.interleaves:
            is_text = [part["type"] == "text" for part in parts]
            media = [text for text, plain in zip(texts, is_text, strict=True) if not plain]
            texts = media + [text for text, plain in zip(texts, is_text, strict=True) if plain]
        return "\n".join(texts)

    def put(self, text: str, spans: Sequence[Span]) -> tuple[str, tuple[Span, ...]]:
        """Return a text with the marks replaced by words, and the moved `spans`."""
        pieces: list[str] = []
        moved = list(spans)
        end = shift = 0
        for match in re.finditer(f"\ufdd0{self.secret}-([a-z]+)\ufdd1", text):
            word = self.words[match[1]]
            pieces += [text[end : match.start()], word]
            change = len(word) - len(match[0])
            at = match.start() + shift
            moved = [(s + change, e + change) if s > at else (s, e) for s, e in moved]
            end, shift = match.end(), shift + change
        return "".join([*pieces, text[end:]]), tuple(moved)

    def _mark(self, kind: str) -> str:
        return f"\ufdd0{self.secret}-{kind}\ufdd1"
