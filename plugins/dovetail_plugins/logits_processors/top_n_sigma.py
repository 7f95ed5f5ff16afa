"""TopNSigma: drops tokens more than n standard deviations below the most likely one.

Source: Tang et al., "Top-n-sigma: not all logits are you need", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

FIELD = "top_n_sigma"
MAX_SIGMAS = 1e6


class TopNSigma(LogitsProcessor):
    """Keeps tokens whose logit is at least the largest minus n times the standard deviation of all
    logits, which is the same at any temperature. Banned tokens do not count."""

    info = Info(
        summary="drops tokens more than n standard deviations below the best",
        source="https://arxiv.org/abs/2411.07641",
    )
    stage = "filter"
    claims = {
        FIELD: "tokens at most so far below the best, in standard deviations of the logits; 0: all"
    }

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._sigmas: dict[int, float] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request sets a number above 0."""
        value = params.extra_args.get(FIELD, 0)
        return not _is_number(value) or value > 0

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raise RequestError for a value that is not a number."""
        if not _is_number(params.extra_args.get(FIELD)):
            raise RequestError(f"must be a number up to {MAX_SIGMAS:g}.", where=FIELD)

    def add_row(self, tokens: RowTokens) -> None:
        """Remember the row's number."""
        self._sigmas[tokens.row] = float(tokens.params.extra_args[FIELD])

    def remove_row(self, row: int) -> None:
        """Forget the row's number."""
        self._sigmas.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Drop the tokens below. Shapes: logits [S, V]. Mutates: logits"""
        import torch

        index = torch.tensor([i for i, _ in rows], device=logits.device)
        sigmas = torch.tensor([self._sigmas[row] for _, row in rows], device=logits.device)
        part = logits[index]
        is_there = part > float("-inf")
        count = is_there.sum(dim=1, keepdim=True)
        mean = part.where(is_there, 0.0).sum(dim=1, keepdim=True) / count
        spread = (part - mean).where(is_there, 0.0).square().sum(dim=1, keepdim=True) / count
        floor = part.amax(dim=1, keepdim=True) - sigmas.unsqueeze(1) * spread.sqrt()
        logits[index] = part.masked_fill_(part < floor, float("-inf"))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value <= MAX_SIGMAS
