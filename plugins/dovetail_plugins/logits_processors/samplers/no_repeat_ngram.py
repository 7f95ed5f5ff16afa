"""NoRepeatNgram: a token that would repeat n tokens of the text so far is not drawn.

Source: Paulus et al., "A deep reinforced model for abstractive summarization", 2017, section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import forbid
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

MAX_NGRAM = 1024


class NoRepeatNgram(Sampler):
    """Bans what followed the last n - 1 tokens before, in the prompt too. Where that would leave
    nothing, the request ends with an error, as with other bans."""

    info = Info(
        summary="bans a token that would repeat n tokens of the text",
        source="https://arxiv.org/abs/1705.04304",
    )
    stage = "ban"
    is_by_value = False
    settings = {
        "no_repeat_ngram_size": Setting(
            what="no run of this many tokens comes twice; 0: any may",
            default=0, low=0, high=MAX_NGRAM, is_whole=True,
        )
    }  # fmt: skip

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._runs: dict[int, _Runs] = {}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a size."""
        return values["no_repeat_ngram_size"] > 0

    def add_row(self, tokens: RowTokens) -> None:
        """Read the runs of the prompt and of what is drawn."""
        super().add_row(tokens)
        size = int(self.rows[tokens.row].values["no_repeat_ngram_size"])
        self._runs[tokens.row] = _Runs(tokens, size)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        super().remove_row(row)
        self._runs.pop(row, None)

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits with bans. Shapes: [S, V] -> [S, V]. Mutates: logits"""
        runs = (self._runs[one.tokens.row] for one in batch.rows)
        forbid(logits, {index: one.banned(logits.shape[1]) for index, one in enumerate(runs)})
        return logits


class _Runs:
    """What followed each run of n - 1 tokens of a row."""

    def __init__(self, tokens: RowTokens, size: int) -> None:
        self._output_ids, self._size = tokens.output_ids, size
        self._after: dict[tuple[int, ...], set[int]] = {}
        self._tail: tuple[int, ...] = ()
        self._num_read = 0
        self._read(tokens.prompt_ids)

    def banned(self, vocab_size: int) -> Sequence[int]:
        """Return the tokens that would complete a run again. Mutates: self"""
        fresh = self._output_ids[self._num_read :]
        self._read(fresh)
        self._num_read += len(fresh)
        return [one for one in self._after.get(self._tail, ()) if one < vocab_size]

    def _read(self, ids: Sequence[int]) -> None:
        for token_id in list(ids):
            if len(self._tail) == self._size - 1:
                self._after.setdefault(self._tail, set()).add(int(token_id))
            self._tail = (*self._tail, int(token_id))[1 - self._size :] if self._size > 1 else ()
