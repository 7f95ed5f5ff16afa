"""RejectionSampler: drafts are accepted so that the distribution of answers is the model's own.

A draft sampled from q is accepted with min(1, p / q); its replacement is sampled from max(0, p -
q). Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


class RejectionSampler(Acceptance):
    """Preserves the distribution; a draft that was not sampled is a point mass."""

    info = Info(
        summary="rejection sampling, which leaves the answers' distribution as it is",
        source="https://arxiv.org/abs/2211.17192",
    )
    capabilities = frozenset({"exact"})

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return min(1, p / q) of each draft. Shapes: p, q [K, V], drafts [K] -> [K]"""
        own = p.gather(1, drafts.unsqueeze(1)).squeeze(1)
        if q is None:
            return own
        # If q is 0 the draft cannot have been sampled from it: p alone decides acceptance.
        theirs = q.gather(1, drafts.unsqueeze(1)).squeeze(1).to(own.dtype)
        return (own / theirs.where(theirs > 0, own.new_ones(()))).clamp_(max=1.0)

    def residual(
        self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
    ) -> torch.Tensor:
        """Return max(0, p - q). Shapes: p, q [K, V], drafts [K] -> [K, V]"""
        if q is None:
            return p.scatter(1, drafts.unsqueeze(1), 0.0)
        return (p - q).clamp_(min=0.0)
