"""Routing: which experts compute a token, and with what weights.

A RoutingRule says how a family decides; `route` is the definition in plain torch, with which every
kernel of the same op is compared. Layers and models know it, but it knows none of them.
Sources: Shazeer et al. 2017 (top-k of a softmax); DeepSeek-AI 2024, DeepSeek-V2, section 2.2
(groups) and DeepSeek-V3, section 2.1.2 (sigmoids, correction bias); Liu et al. 2024, GRIN
(sparsemixer).
Shape letters: T tokens, X experts, A of them picked per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

Scoring = Literal["softmax", "sigmoid", "sqrtsoftplus", "sparsemixer"]
"""How a token's scores become weights: "softmax" over all experts, "sigmoid" or "sqrtsoftplus" (the
root of softplus) of each, "sparsemixer": see `_sparsemixer`."""
GroupScore = Literal["best", "two_best"]
"""The score of a group of experts: its best member, or the sum of its two best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """How the `num_picked` experts of a token are chosen and weighed.

    Experts are in `num_groups` groups of neighbours; only the `num_kept_groups` best may be picked
    from. With `renormalizes` the picked experts' weights are divided by their sum, or by
    `least_sum` if the sum is less; then all weights are multiplied by `factor`. With
    `weighs_inputs` a weight multiplies an expert's input, not its output (`route` ignores it).
    `margin` belongs to sparsemixer.
    """

    num_picked: int
    scoring: Scoring = "softmax"
    renormalizes: bool = False
    least_sum: float = 0.0
    factor: float = 1.0
    num_groups: int = 1
    num_kept_groups: int = 1
    group_score: GroupScore = "best"
    weighs_inputs: bool = False
    margin: float = 0.0

    @property
    def is_grouped(self) -> bool:
        """Return whether some groups of experts may not be picked from."""
        return self.num_kept_groups < self.num_groups


def route(
    scores: torch.Tensor, rule: RoutingRule, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights, expert ids) of each token's experts, the best first.

    `bias` only affects the choice, not the weights. Sparsemixer has none.

    Shapes: scores [T, X], bias [X] -> [T, A] float32, [T, A] int64
    """
    scores = scores.float()
    if rule.scoring == "sparsemixer":
        return _sparsemixer(scores, rule)
    likely = _likely(scores, rule)
    chosen_by = likely if bias is None else likely + bias.float()
    if rule.is_grouped:
        chosen_by = _within_groups(chosen_by, rule)
    experts = chosen_by.topk(rule.num_picked, dim=-1).indices
    return _weights(likely, experts, rule), experts


def weigh(scores: torch.Tensor, rule: RoutingRule, experts: torch.Tensor) -> torch.Tensor:
    """Return the weights of experts that something else picked. Shapes: scores [T, X], experts
    [T, A] -> [T, A] float32"""
    return _weights(_likely(scores.float(), rule), experts, rule)


def _likely(scores: torch.Tensor, rule: RoutingRule) -> torch.Tensor:
    if rule.scoring == "softmax":
        return scores.softmax(dim=-1)
    return scores.sigmoid() if rule.scoring == "sigmoid" else F.softplus(scores).sqrt()


def _weights(likely: torch.Tensor, experts: torch.Tensor, rule: RoutingRule) -> torch.Tensor:
    weights = likely.gather(-1, experts)
    if rule.renormalizes:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=rule.least_sum)
    return weights * rule.factor


def _within_groups(values: torch.Tensor, rule: RoutingRule) -> torch.Tensor:
    """Return the values with -inf in the dropped groups. Shapes: [T, X] -> [T, X]"""
    groups = values.unflatten(-1, (rule.num_groups, -1))
    best = groups.topk(2 if rule.group_score == "two_best" else 1, dim=-1).values.sum(dim=-1)
    best_groups = best.topk(rule.num_kept_groups, dim=-1).indices
    is_lost = torch.ones_like(best, dtype=torch.bool).scatter_(-1, best_groups, False)
    return groups.masked_fill(is_lost.unsqueeze(-1), -torch.inf).flatten(-2)


def _sparsemixer(scores: torch.Tensor, rule: RoutingRule) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sparsemixer's result at inference: expert after expert, the best of those left,
    weighed by its softmax among those left whose scores are near its own.

    Near: below the best score m by at most 2 * margin * max(|score|, m).
    Shapes: scores [T, X] -> [T, A], [T, A]
    """
    left, picked = scores, []
    for _ in range(rule.num_picked):
        best, expert = left.max(dim=-1, keepdim=True)
        distance = (best - scores) / torch.maximum(scores.abs(), best)
        near = left.masked_fill(distance > 2 * rule.margin, -torch.inf)
        picked.append((near.softmax(dim=-1).gather(-1, expert), expert))
        left = left.scatter(-1, expert, -torch.inf)
    weights, experts = (torch.cat(parts, dim=-1) for parts in zip(*picked, strict=True))
    return weights * rule.factor, experts
