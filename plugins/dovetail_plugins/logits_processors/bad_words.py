"""BadWords: a token that would complete a banned sequence of tokens is not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import forbid, verify_ids

if TYPE_CHECKING:
    import torch


class BadWords(LogitsProcessor):
    """Watches the drawn tokens only: a sequence that began in the prompt is not banned."""

    info = Info(summary="bans sequences of tokens (bad_words)")
    stage = "ban"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request bans words."""
        return bool(params.bad_words_token_ids)

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when an id is outside the vocabulary."""
        for word in params.bad_words_token_ids:
            verify_ids(word, vocab_size, "bad_words")

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the live view of the row's tokens."""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Ban tokens that would complete a word. Shapes: logits [S, V]. Mutates: logits"""
        forbid(logits, {index: completing_ids(self._rows[row]) for index, row in rows})


def completing_ids(tokens: RowTokens) -> list[int]:
    """Return the last token of every banned sequence whose beginning has just been drawn."""
    words = [word for word in tokens.params.bad_words_token_ids if word]
    longest = max((len(word) for word in words), default=1) - 1
    tail = tuple(tokens.output_ids[-longest:]) if longest else ()
    return [
        word[-1]
        for word in words
        if len(word) == 1 or (len(word) - 1 <= len(tail) and tail[1 - len(word) :] == word[:-1])
    ]
