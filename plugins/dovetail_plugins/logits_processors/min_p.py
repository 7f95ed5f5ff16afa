"""MinP: drops tokens far less likely than the most likely one.

Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


class MinP(LogitsProcessor):
    """Keeps tokens of probability >= min_p x the largest, at the request's temperature."""

    info = Info(
        summary="drops tokens below min_p times the largest probability",
        source="https://arxiv.org/abs/2407.01082",
    )
    stage = "filter"
    field = "min_p"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._log_min_p: dict[int, float] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request sets min_p."""
        return params.min_p > 0.0

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's bound as a difference of logits."""
        self._log_min_p[tokens.row] = math.log(tokens.params.min_p)

    def remove_row(self, row: int) -> None:
        """Forget the row's bound."""
        self._log_min_p.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Drop the unlikely. Shapes: logits [S, V]. Mutates: logits"""
        import torch

        index = torch.tensor([i for i, _ in rows], device=logits.device)
        bounds = torch.tensor([self._log_min_p[row] for _, row in rows], device=logits.device)
        part = logits[index]
        thresholds = part.amax(dim=1, keepdim=True) + bounds.unsqueeze(1)
        logits[index] = part.masked_fill_(part < thresholds, float("-inf"))
