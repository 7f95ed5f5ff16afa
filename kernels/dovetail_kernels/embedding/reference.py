"""The definition of embedding in torch."""

from __future__ import annotations

import torch


def reference(
    ids: torch.Tensor,
    table: torch.Tensor,
    scales: torch.Tensor | None = None,
    first: int = 0,
    factor: float = 1.0,
) -> torch.Tensor:
    """Return rows of the table. Shapes: ids [T], table [V, E] -> [T, E] float32"""
    at = ids - first
    is_foreign = (at < 0) | (at >= table.shape[0])
    at = at.masked_fill(is_foreign, 0)
    out = table[at].float()
    if scales is not None:
        out = out * scales[at].unsqueeze(1)
    return (out * factor).masked_fill(is_foreign.unsqueeze(1), 0.0)
