"""The definition of embedding in torch."""

from __future__ import annotations

import torch


def reference(
    ids: torch.Tensor | None,
    table: torch.Tensor,
    scales: torch.Tensor | None = None,
    first: int = 0,
    factor: float = 1.0,
    onto: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return rows of the table, added to `onto` if it is given.

    Shapes: ids [T], table [V, E], onto [T, E] -> [T, E] float32. Mutates: onto
    """
    if ids is None:
        assert onto is not None, "ids or what is added to say how many rows there are"
        ids = torch.full((len(onto),), first, device=table.device)
    at = ids - first
    is_foreign = (at < 0) | (at >= table.shape[0])
    at = at.masked_fill(is_foreign, 0)
    out = table[at].float()
    if scales is not None:
        out = out * scales[at].unsqueeze(1)
    found = (out * factor).masked_fill(is_foreign.unsqueeze(1), 0.0)
    return found if onto is None else onto.add_(found)
