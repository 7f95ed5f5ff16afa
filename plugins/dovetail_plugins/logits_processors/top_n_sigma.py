"""TopNSigma: drops tokens more than n standard deviations below the most likely one.

Source: Tang et al., "Top-n-sigma: not all logits are you need", 2024.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

FIELD = "top_n_sigma"
MAX_SIGMAS = 1e6


class TopNSigma(Sampler):
    """Keeps tokens whose logit is at least the largest minus n times the standard deviation of all
    logits, which is the same at any temperature. Banned tokens do not count."""

    info = Info(
        summary="drops tokens more than n standard deviations below the best",
        source="https://arxiv.org/abs/2411.07641",
    )
    stage = "filter"
    settings = {
        FIELD: Setting(
            what="tokens at most so far below the best, in standard deviations of the logits; "
            "0: all",
            default=0.0, low=-MAX_SIGMAS, high=MAX_SIGMAS, others=("nsigma",),
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values[FIELD] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the tokens above the bound. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import cut, spread

        best = logits.amax(dim=1, keepdim=True)
        floor = best - (batch.column(FIELD) * spread(logits - best)).float()
        return cut(logits, logits >= floor, batch)
