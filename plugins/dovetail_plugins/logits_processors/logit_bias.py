"""LogitBias: adds a request's own numbers to the logits of tokens it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail_plugins.logits_processors._ids import flat_index, verify_ids

if TYPE_CHECKING:
    import torch


class LogitBias(LogitsProcessor):
    """Adds `SamplingParams.logit_bias` (-100 to 100) before penalties and temperature."""

    info = Info(summary="adds a bias to the logits of given token ids")
    stage = "bias"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._biases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request has biases."""
        return bool(params.logit_bias)

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when an id is outside the vocabulary."""
        verify_ids(params.logit_bias, vocab_size, "logit_bias")

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's ids and biases."""
        import torch

        bias = tokens.params.logit_bias
        self._biases[tokens.row] = (
            torch.tensor(list(bias), dtype=torch.int64),
            torch.tensor(list(bias.values()), dtype=torch.float32),
        )

    def remove_row(self, row: int) -> None:
        """Forget the row's biases."""
        self._biases.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Add the biases. Shapes: logits [S, V]. Mutates: logits"""
        import torch

        found = [self._biases[row] for _, row in rows]
        index, ids = flat_index([ids for ids, _ in found], [i for i, _ in rows])
        values = torch.cat([values for _, values in found])
        device = logits.device
        # Ids are distinct within a row, so no sum depends on the order of additions.
        logits[index.to(device), ids.to(device)] += values.to(device)
