"""Logprobs in the format of OpenAI's completions: columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.engine.client.results.logprobs import finite
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.endpoint import TokenNames


class TextPlace:
    """The length of the text that a choice's tokens have produced, in characters. Part of a
    character has the character's position; a skipped token has no text."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], *, start: int, skips_special: bool
    ) -> None:
        self._stream = tokenizer.stream(prompt_ids, skip_special_tokens=skips_special)
        self._place = start

    def offsets(self, token_ids: Sequence[int]) -> list[int]:
        """Return the text offset of each token. Mutates: self"""
        found = []
        for token_id in token_ids:
            found.append(self._place)
            self._place += len(self._stream.push(token_id))
        return found


def prompt_offsets(tokenizer: Tokenizer, text: str, token_ids: Sequence[int]) -> list[int]:
    """Return the offset of each prompt token in the text. Special tokens added by the tokenizer
    have offset 0."""
    before, _ = tokenizer.special_around()
    num_added = len(before) if before and list(token_ids[: len(before)]) == list(before) else 0
    place = TextPlace(tokenizer, (), start=0, skips_special=False)
    offsets = [0] * num_added + place.offsets(token_ids[num_added:])
    return [min(offset, len(text)) for offset in offsets]


@dataclass(slots=True, kw_only=True)
class CompletionColumns:
    """Completion logprobs as columns that grow."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


def completion_columns(
    positions: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    num_top: int,
    names: TokenNames,
    offsets: Sequence[int],
) -> CompletionColumns:
    """Return OpenAI's completion logprobs. A None position means the prompt's first token."""
    tokens = names.of(token_ids)
    return CompletionColumns(
        text_offset=list(offsets),
        token_logprobs=[None if p is None else finite(p.logprob) for p in positions],
        tokens=tokens,
        top_logprobs=[
            None if p is None else _top(p, token, num_top, names)
            for p, token in zip(positions, tokens, strict=True)
        ],
    )


def _top(position: TokenLogprobs, token: str, num_top: int, names: TokenNames) -> dict[str, float]:
    top_ids = position.top_ids[:num_top] if num_top >= 0 else position.top_ids
    pairs = zip(names.of(top_ids), position.top_logprobs, strict=False)
    found = {text: finite(logprob) for text, logprob in pairs}
    found.setdefault(token, finite(position.logprob))
    return found
