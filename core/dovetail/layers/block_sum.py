"""What a block of experts adds to the sum of those that were picked."""

from __future__ import annotations

import torch


def plus_rest(
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
    shared_scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what picked experts made plus the rest of a block (see Experts.forward)."""
    if shared is not None:
        out = out + (shared if shared_scores is None else shared_scores.sigmoid() * shared)
    return out if residual is None else residual + out
