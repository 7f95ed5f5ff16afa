"""Typical: keeps the tokens whose surprise is nearest to the expected one.

Source: Meister et al., "Locally typical sampling", 2022, https://arxiv.org/abs/2202.00666.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch


class Typical(Sampler):
    """Keeps the smallest set of tokens, nearest surprise first, with a share of the mass."""

    info = Info(
        summary="keeps the tokens whose surprise is nearest to the expected one",
        source="https://arxiv.org/abs/2202.00666",
    )
    stage = "before_top_p"
    settings = {
        "typical_p": Setting(
            what="the share of the most typical tokens; 1: all",
            default=1.0, low=0.0, high=1.0, others=("typical",),
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values["typical_p"] < 1.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the typical tokens. Shapes: [S, V] -> [S, V]"""
        import torch

        from dovetail_plugins.logits_processors.samplers import _mass

        mass = _mass.Mass(logits)
        nearness = -(mass.below - mass.mean.float()).abs()
        lowest = _mass.score_reaching(nearness, mass, batch.column("typical_p"))
        if max(batch.min_keep, default=1) > 1:
            lowest = torch.minimum(lowest, _mass.ranked(nearness, batch.min_keep))
        return torch.where(nearness >= lowest, logits, -torch.inf)
