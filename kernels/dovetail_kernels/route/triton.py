"""route in Triton: one program a token.

Floor: a token's scores read once, 12 bytes written an expert picked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _first_of_largest(values, expert, WIDTH: tl.constexpr):
    return tl.min(tl.where(values == tl.max(values, axis=0), expert, WIDTH - 1), axis=0)


@triton.jit
def _keep_groups(
    values, expert, groups, num_kept, size, ADDS_TWO: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Set the values of dropped groups to -inf."""
    group = tl.arange(0, GROUPS)
    scores = tl.full((GROUPS,), float("-inf"), tl.float32)
    for g in range(groups):
        own = tl.where(expert // size == g, values, float("-inf"))
        score = tl.max(own, axis=0)
        if ADDS_TWO:
            others = tl.where(expert == _first_of_largest(own, expert, WIDTH), float("-inf"), own)
            score += tl.max(others, axis=0)
        scores = tl.where(group == g, score, scores)
    is_kept = tl.zeros((WIDTH,), tl.int1)
    for _ in range(num_kept):
        best = _first_of_largest(scores, group, GROUPS)
        is_kept = is_kept | (expert // size == best)
        scores = tl.where(group == best, float("-inf"), scores)
    return tl.where(is_kept, values, float("-inf"))


@triton.jit
def _kernel(
    scores, stride, bias, weights, experts, num_experts, groups, num_kept, least_sum, factor,
    IS_SIGMOID: tl.constexpr, HAS_BIAS: tl.constexpr, RENORMALIZES: tl.constexpr,
    ADDS_TWO: tl.constexpr, IS_GROUPED: tl.constexpr, PICKED: tl.constexpr, PLACES: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, WIDTH)
    inside = expert < num_experts
    x = tl.load(scores + token * stride + expert, mask=inside, other=float("-inf")).to(tl.float32)
    if IS_SIGMOID:
        likely = 1.0 / (1.0 + tl.exp(-x))
    else:
        powers = tl.exp(x - tl.max(x, axis=0))
        likely = powers / tl.sum(powers, axis=0)
    values = likely
    if HAS_BIAS:
        values += tl.load(bias + expert, mask=inside, other=0.0).to(tl.float32)
    values = tl.where(inside, values, float("-inf"))
    if IS_GROUPED:
        size = num_experts // groups
        values = _keep_groups(values, expert, groups, num_kept, size, ADDS_TWO, GROUPS, WIDTH)
    total = 0.0
    at = token * PICKED
    place = tl.arange(0, PLACES)
    found = tl.zeros((PLACES,), tl.int32)
    picked = tl.zeros((PLACES,), tl.float32)
    for a in tl.static_range(PICKED):
        best = _first_of_largest(values, expert, WIDTH)
        weight = tl.sum(tl.where(expert == best, likely, 0.0), axis=0)
        total += weight
        found = tl.where(place == a, best, found)
        picked = tl.where(place == a, weight, picked)
        values = tl.where(expert == best, float("-inf"), values)
    if RENORMALIZES:
        picked = picked / tl.maximum(total, least_sum)
    tl.store(experts + at + place, found.to(tl.int64), mask=place < PICKED)
    tl.store(weights + at + place, picked * factor, mask=place < PICKED)


def run(
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
    """Fill `weights` and `experts` (see the op). Rows of scores may be strided.

    Shapes: scores [T, X], bias [X], both [T, A]. Mutates: weights, experts
    """
    tokens, num_experts = scores.shape
    if not tokens:
        return
    _kernel[(tokens,)](
        scores, scores.stride(0), scores if bias is None else bias, weights, experts, num_experts,
        num_groups, num_kept_groups, least_sum, factor, IS_SIGMOID=scoring == "sigmoid",
        HAS_BIAS=bias is not None, RENORMALIZES=renormalizes, ADDS_TWO=group_score == "two_best",
        IS_GROUPED=num_kept_groups < num_groups, PICKED=experts.shape[1],
        PLACES=triton.next_power_of_2(experts.shape[1]),
        GROUPS=triton.next_power_of_2(num_groups), WIDTH=triton.next_power_of_2(num_experts),
        num_warps=1 if num_experts <= 128 else 4,
    )  # fmt: skip
