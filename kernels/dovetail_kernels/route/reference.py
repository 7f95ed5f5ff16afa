"""The definition of route in torch."""

from __future__ import annotations

import torch


def reference(
    scores: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    bias: torch.Tensor | None = None,
    scoring: str = "softmax",
    renormalizes: bool = False,
    least_sum: float = 0.0,
    factor: float = 1.0,
    num_groups: int = 1,
    num_kept_groups: int = 1,
    group_score: str = "best",
) -> None:
    """Fill `weights` and `experts` (see the op). Shapes: scores [T, X], bias [X], both [T, A]

    Mutates: weights, experts
    """
    scores = scores.float()
    likely = scores.softmax(dim=-1) if scoring == "softmax" else scores.sigmoid()
    chosen_by = likely if bias is None else likely + bias
    if num_kept_groups < num_groups:
        groups = chosen_by.unflatten(-1, (num_groups, -1))
        best = _largest(groups, 2 if group_score == "two_best" else 1).values.sum(dim=-1)
        best_groups = _largest(best, num_kept_groups).indices
        is_kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best_groups, True)
        chosen_by = groups.masked_fill(~is_kept.unsqueeze(-1), -torch.inf).flatten(-2)
    experts.copy_(_largest(chosen_by, experts.shape[1]).indices)
    picked = likely.gather(-1, experts)
    if renormalizes:
        picked = picked / picked.sum(dim=-1, keepdim=True).clamp(min=least_sum)
    weights.copy_(picked * factor)


def _largest(values: torch.Tensor, count: int) -> torch.return_types.sort:
    """Return the largest values of the last axis in order, the first of equal ones first."""
    found = values.sort(dim=-1, descending=True, stable=True)
    return torch.return_types.sort((found.values[..., :count], found.indices[..., :count]))
