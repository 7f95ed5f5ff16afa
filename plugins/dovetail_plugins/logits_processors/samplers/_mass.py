"""Probabilities of whole numbers, whose sums are the same in any batch, and cuts by them.

A weight is that of the draw (`dovetail_kernels.sample.definition`): a whole number of 2^-40. Sums
are of whole numbers too, so that no row's outcome depends on how many rows there are, nor on the
order in which a machine adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch

from dovetail_kernels.sample.definition import WEIGHT_UNITS, weights
from dovetail_plugins.logits_processors.samplers._sampler import Rows, column

PROBE_TOKENS = 1024
"""How many tokens a search by mass looks at before it sorts a row."""
UNIT = 2.0**WEIGHT_UNITS
LOWEST = -4096.0
"""Logits that are further below the best count as this far below."""
FINE = 2.0**20


class Mass:
    """The distribution of some rows. `below` is how far each logit is below the best, `weight` its
    whole number (the best token's is 2^40), `total` their sum. Shapes: [S, V] float32 twice, [S, 1]
    float64"""

    def __init__(self, logits: torch.Tensor) -> None:
        self.below = logits - logits.amax(dim=1, keepdim=True)
        self.weight = weights(self.below)
        self.total = self.weight.sum(dim=1, keepdim=True, dtype=torch.int64).double()

    @cached_property
    def mean(self) -> torch.Tensor:
        """Return the mean of `below`, each token by its probability. Shapes: [S, 1] float64"""
        known = self.below.clamp(min=LOWEST)  # below, tokens weigh nothing
        products = known.mul_(self.weight).round_()
        return products.sum(dim=1, keepdim=True, dtype=torch.int64).double() / self.total

    @cached_property
    def entropy(self) -> list[float]:
        """Return the entropy of each row, in natural logarithms."""
        pairs = zip(self.total.flatten().tolist(), self.mean.flatten().tolist(), strict=True)
        return [math.log(total / UNIT) - mean if total > 0 else 0.0 for total, mean in pairs]

    def reaches(self, share: torch.Tensor) -> torch.Tensor:
        """Return which tokens have at least this probability. Shapes: [S, 1] -> [S, V] bool"""
        return self.weight >= (share * self.total).float()


def cut(logits: torch.Tensor, is_left: torch.Tensor, batch: Rows) -> torch.Tensor:
    """Return the logits without the other tokens; the best, and as many as `min_keep`, stay.

    Shapes: [S, V], is_left [S, V] bool -> [S, V]
    """
    is_left = is_left | (logits == logits.amax(dim=1, keepdim=True))
    if max(batch.min_keep, default=1) > 1:
        is_left = is_left | (logits >= ranked(logits, batch.min_keep))
    return torch.where(is_left, logits, -torch.inf)


def ranked(scores: torch.Tensor, ranks: Sequence[int]) -> torch.Tensor:
    """Return the score that is the nth highest of each row, n from 1. Shapes: [S, V] -> [S, 1]"""
    count = min(max(ranks), scores.shape[1])
    values = descending(scores, count)
    places = torch.tensor(ranks, device=scores.device).clamp_(1, count).unsqueeze(1) - 1
    return values.gather(1, places)


def descending(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the highest scores of each row in order. Shapes: [S, V] -> [S, count]"""
    if count > scores.shape[1] // 8:
        return scores.sort(dim=1, descending=True).values[:, :count]
    return scores.topk(count, dim=1).values


def score_reaching(scores: torch.Tensor, mass: Mass, share: torch.Tensor) -> torch.Tensor:
    """Return the score down to which tokens, best score first, have this share of the mass.

    Shapes: scores [S, V], share [S, 1] float64 -> [S, 1]
    """
    goal = (mass.total * share).ceil().clamp(min=1).minimum(mass.total)
    found, is_found = _searched(scores, mass.weight, goal, PROBE_TOKENS)
    rest = (~is_found).nonzero().flatten()
    if rest.numel():
        found[rest] = _searched(scores[rest], mass.weight[rest], goal[rest], scores.shape[1])[0]
    return found


def _searched(
    scores: torch.Tensor, weight: torch.Tensor, goal: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the score as `score_reaching`, and whether the first `count` tokens reach it."""
    count = min(count, scores.shape[1])
    best = scores.sort(dim=1, descending=True) if count == scores.shape[1] else scores.topk(count)
    cumulative = weight.gather(1, best.indices).cumsum(dim=1, dtype=torch.float64)
    is_reached = cumulative >= goal
    return best.values.gather(1, is_reached.int().argmax(dim=1, keepdim=True)), is_reached.any(1)


def spread(below: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of the finite logits of each row, from sums of whole
    numbers. Shapes: [S, V], row maximum 0 -> [S, 1] float64"""
    num_out = (below == -torch.inf).sum(dim=1, keepdim=True)
    count = below.shape[1] - num_out
    known = below.clamp(min=LOWEST)
    total = (known * FINE).round_().sum(dim=1, keepdim=True, dtype=torch.int64)
    squares = known.square_().mul_(FINE).round_().sum(dim=1, keepdim=True, dtype=torch.int64)
    mean = (total - num_out * int(LOWEST * FINE)).double() / (FINE * count)
    square = (squares - num_out * int(LOWEST**2 * FINE)).double() / (FINE * count)
    return (square - mean.square()).clamp_(min=0.0).sqrt_()


def numbers(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Return a number for each row, of the type of `like`. Shapes: [S] -> [S, 1]"""
    return column(values, like.device).to(like.dtype)
