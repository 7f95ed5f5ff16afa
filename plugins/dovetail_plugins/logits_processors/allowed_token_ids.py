"""AllowedTokenIds: only the ids a request lists may be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import verify_ids

if TYPE_CHECKING:
    import torch


class AllowedTokenIds(LogitsProcessor):
    """Sets every other logit to -inf (`SamplingParams.allowed_token_ids`)."""

    info = Info(summary="only the listed token ids may be sampled")
    stage = "allow"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._ids: dict[int, torch.Tensor] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request lists ids."""
        return params.allowed_token_ids is not None

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when an id is outside the vocabulary."""
        verify_ids(params.allowed_token_ids or (), vocab_size, "allowed_token_ids")

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's ids."""
        import torch

        self._ids[tokens.row] = torch.tensor(tokens.params.allowed_token_ids, dtype=torch.int64)

    def remove_row(self, row: int) -> None:
        """Forget the row's ids."""
        self._ids.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Keep the listed ids. Shapes: logits [S, V]. Mutates: logits"""
        from dovetail_kernels.sample.seen import on_device

        for index, row in rows:
            ids = self._ids[row]
            if ids.device != logits.device:  # the row's first step: they stay there
                ids = self._ids[row] = on_device(ids.numpy(), logits.device)
            values = logits[index, ids]
            logits[index].fill_(float("-inf"))
            logits[index, ids] = values
