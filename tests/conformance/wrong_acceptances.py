"""Acceptances for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.plugin import Info


class RightAcceptance(Acceptance):
    """Rejection sampling; the others derive from it."""

    info = Info(summary="rejection sampling")
    capabilities = frozenset({"exact"})

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return min(1, p / q)."""
        at = drafts.unsqueeze(1)
        theirs = torch.ones_like(p) if q is None else q.to(p.dtype)
        return (p / theirs.clamp(min=1e-300)).gather(1, at).squeeze(1).clamp(max=1.0)

    def residual(
        self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return max(0, p - q)."""
        theirs = torch.zeros_like(p).scatter_(1, drafts.unsqueeze(1), 1.0) if q is None else q
        return (p - theirs).clamp(min=0.0)


class EagerAcceptance(RightAcceptance):
    """Does not bound the quotient."""

    info = Info(summary="p / q")

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return p / q, above 1 where the model likes a draft better."""
        at = drafts.unsqueeze(1)
        theirs = torch.ones_like(p) if q is None else q.to(p.dtype)
        return (p / theirs.clamp(min=1e-300)).gather(1, at).squeeze(1)


class TrustingAcceptance(RightAcceptance):
    """Accepts whatever the drafter was sure of."""

    info = Info(summary="by q alone")

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return q, whatever the model says."""
        theirs = torch.ones_like(p) if q is None else q.to(p.dtype)
        return theirs.gather(1, drafts.unsqueeze(1)).squeeze(1)


class CarelessAcceptance(RightAcceptance):
    """Draws again from p after a rejection, which favours what p and q both like."""

    info = Info(summary="the same draw again")

    def residual(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> None:
        """Return None, as if the draft had not been asked about."""
        return


class ScribblingAcceptance(RightAcceptance):
    """Subtracts in place."""

    info = Info(summary="changes p")

    def residual(
        self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return max(0, p - q), in the memory of p."""
        return p if q is None else p.sub_(q).clamp_(min=0.0)


class CrowdAcceptance(RightAcceptance):
    """Lets the least likely of all drafts decide."""

    info = Info(summary="one chance for all")

    def chance(self, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
        """Return the smallest chance of a draft for each."""
        own = super().chance(p, drafts, q)
        return own.min().expand(len(own))
