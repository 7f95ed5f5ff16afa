"""RepeatGuard: bans the token that would repeat an n-gram of the answer.

The rule of "no repeat n-gram" decoding (Paulus et al. 2017, section 2.5), over the answer only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

NAME = "repeat_guard"
DEFAULT_LENGTH = 4
MAX_LENGTH = 64


class RepeatGuard(LogitsProcessor):
    """Requests ask for it: `logits_processors: {"repeat_guard": {"length": 3}}`."""

    interface_version = 1
    info = Info(
        summary="bans tokens that would repeat an n-gram of the answer",
        source="https://arxiv.org/abs/1705.04304",
    )
    stage = "ban"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request names it."""
        return NAME in params.logits_processors

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Check the request's length. Raises: RequestError"""
        length = params.logits_processors[NAME].get("length", DEFAULT_LENGTH)
        if not isinstance(length, int) or not 1 <= length <= MAX_LENGTH:
            raise RequestError(
                f"must be from 1 to {MAX_LENGTH}, not {length!r}.",
                where=f"logits_processors.{NAME}.length",
            )

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row."""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget a row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Ban each row's repeating tokens. Shapes: logits [S, V]. Mutates: logits"""
        for index, row in rows:
            tokens = self._rows[row]
            length = tokens.params.logits_processors[NAME].get("length", DEFAULT_LENGTH)
            banned = repeating_ids(list(tokens.output_ids), length)
            if len(banned) < self.vocab_size:
                logits[index, sorted(banned)] = float("-inf")


def repeating_ids(output_ids: Sequence[int], length: int) -> set[int]:
    """Return the ids that would complete an n-gram of this length that stands there already."""
    recent = list(output_ids[len(output_ids) - length + 1 :])
    if len(output_ids) < length:
        return set()
    starts = range(len(output_ids) - length + 1)
    return {
        output_ids[start + length - 1]
        for start in starts
        if list(output_ids[start : start + length - 1]) == recent
    }
