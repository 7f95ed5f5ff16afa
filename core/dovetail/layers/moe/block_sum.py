"""Adds the rest of an MoE block to the sum of its picked experts."""

from __future__ import annotations

import torch


def plus_rest(
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
    shared_scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the output of picked experts plus the rest of a block (see Experts.forward)."""
    if shared is not None:
        out = out + (shared if shared_scores is None else shared_scores.sigmoid() * shared)
    return out if residual is None else residual + out
