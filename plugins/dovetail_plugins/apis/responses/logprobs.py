"""Logprobs of a response's text: only of the tokens that became text, not of markers.

Steps contain tokens and events contain text; some tokens are held back or dropped between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.endpoint import TokenLogprob, TokenNames, chat_logprobs

Entry = dict[str, Any]


class TextLogprobs:
    """Tokens received but not yet matched with text. `num_top` candidates are reported per token,
    plus the token itself if the request names candidates (`is_named`)."""

    def __init__(self, num_top: int, names: TokenNames, *, is_named: bool) -> None:
        self._num_top = num_top
        self._is_named = is_named
        self._names = names
        self._texts = TokenNames(tokenizer=names.tokenizer)
        self._pending: list[tuple[str, TokenLogprob]] = []

    def note(self, positions: Sequence[TokenLogprobs]) -> None:
        """Add the tokens of a step. Mutates: self"""
        texts = self._texts.of([position.token_id for position in positions])
        entries = chat_logprobs(positions, self._num_top, self._names, is_named=self._is_named)
        self._pending += zip(texts, entries, strict=True)

    def skip(self, text: str) -> None:
        """Drop the tokens of reasoning or call arguments, if these appear verbatim in the model's
        text. Mutates: self"""
        if text in "".join(piece for piece, _ in self._pending):
            self.take(text)

    def take(self, text: str) -> list[Entry]:
        """Return the entries of the tokens that produced a piece of text. Earlier tokens belong to
        no text and are dropped. Mutates: self"""
        pending = self._pending
        joined = "".join(piece for piece, _ in pending)
        at = joined.find(text)
        if at < 0:  # a character of several tokens, which have no text of their own
            first, last = 0, len(pending)
        else:
            ends = list(accumulate(len(piece) for piece, _ in pending))
            first = next(i for i, end in enumerate(ends) if end > at)
            last = next(i for i, end in enumerate(ends) if end >= at + len(text)) + 1
        self._pending = pending[last:]
        return [_entry(one) for _, one in pending[first:last]]


def _entry(token: TokenLogprob) -> Entry:
    entry = token.model_dump()
    for one in (entry, *entry["top_logprobs"]):
        one["bytes"] = one["bytes"] or []
    return entry
