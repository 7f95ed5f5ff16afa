"""MinTokens: no token that would end the request before it has its minimum of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import forbid, verify_ids

if TYPE_CHECKING:
    import torch


def ending_ids(params: SamplingParams) -> tuple[int, ...]:
    """Return the ids that end a request: its stop ids, and the model's unless ignore_eos."""
    eos = () if params.ignore_eos else params.eos_token_ids
    return (*params.stop_token_ids, *eos)


class MinTokens(LogitsProcessor):
    """Bans end and stop tokens until `min_tokens` are drawn; stop strings are the engine's."""

    info = Info(summary="bans end and stop tokens until min_tokens tokens are sampled")
    stage = "bias"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._vocab_size = vocab_size
        """Checkpoints name ends that the table has no row for, which cannot be drawn."""
        self._rows: dict[int, tuple[RowTokens, list[int]]] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request has a minimum and a token that could end it."""
        return params.min_tokens > 0 and bool(ending_ids(params))

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when a stop id is outside the vocabulary."""
        if params.min_tokens > 0:
            verify_ids(params.stop_token_ids, vocab_size, "stop_token_ids")

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's ending ids and its live tokens."""
        ids = [one for one in ending_ids(tokens.params) if one < self._vocab_size]
        self._rows[tokens.row] = (tokens, ids)

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Ban the endings of rows that are still short. Shapes: logits [S, V]. Mutates: logits"""
        rows_by_index = {index: self._rows[row] for index, row in rows}
        forbid(
            logits,
            {
                index: endings
                for index, (tokens, endings) in rows_by_index.items()
                if len(tokens.output_ids) < tokens.params.min_tokens
            },
        )
