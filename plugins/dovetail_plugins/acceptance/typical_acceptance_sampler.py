"""TypicalAcceptanceSampler: a draft is accepted if the model finds it likely enough.

How likely depends on how sure the model is: p(draft) above min(threshold, alpha * e^-entropy). More
drafts are accepted than by rejection sampling, and THE DISTRIBUTION OF ANSWERS CHANGES: accepted
tokens become more frequent than the model has them. Greedy requests are unaffected. Source: Cai et
al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

LEAST_P = 1e-37
"""Below it p log p is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalOptions:
    """Options of typical acceptance."""

    posterior_threshold: float = field(
        default=0.09,
        metadata={
            "help": "a draft above this probability is always accepted",
            "ge": 0.0,
            "le": 1.0,
        },
    )
    posterior_alpha: float | None = field(
        default=None,
        metadata={
            "help": "share of e^-entropy that a draft's probability must exceed, where that is "
            "less than posterior_threshold; the square root of posterior_threshold if not given",
            "ge": 0.0,
        },
    )

    @property
    def alpha(self) -> float:
        """Return posterior_alpha, or its default."""
        given = self.posterior_alpha
        return float(self.posterior_threshold**0.5) if given is None else given


class TypicalAcceptanceSampler(Acceptance):
    """Changes the distribution of sampled answers: a likely draft is accepted, sampled or not."""

    info = Info(
        summary="typical acceptance, which accepts likely drafts and changes the distribution",
        source="https://arxiv.org/abs/2401.10774",
    )
    Options = TypicalOptions

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return 1 for likely drafts, 0 for others. Shapes: p [K, V], drafts [K] -> [K]"""
        own = p.gather(1, drafts.unsqueeze(1)).squeeze(1)
        narrow = p.float()
        certainty = (narrow * narrow.clamp(min=LEAST_P).log()).sum(dim=1).exp().to(p.dtype)
        threshold = (certainty * self.options.alpha).clamp_(max=self.options.posterior_threshold)
        return (own > threshold).to(p.dtype)

    def residual(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> None:
        """Return None: an unlikely draft leaves no trace."""
        return
