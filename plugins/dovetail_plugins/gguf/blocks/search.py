"""Scales of quantized groups with the least weighted squared error.

For each of several candidate scales the levels are rounded, and the scale that is then best is the
solution of least squares over the group; the candidate with the least error is used. The method is
described in https://github.com/ggml-org/llama.cpp/pull/1684 and, for importances, in
https://github.com/ggml-org/llama.cpp/pull/4861. Shape letters: G values of a group, N groups; all
tensors [G, N] are float32 and have the groups in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SINGULAR = 1e-6
"""The share of its terms below which a determinant is only rounding."""

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Rounds scaled values to levels, in place where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Groups of weights `x` and their importances `weight`, None for equal ones. Shapes: [G, N]"""

    x: torch.Tensor
    weight: torch.Tensor | None

    def weighted(self, values: torch.Tensor) -> torch.Tensor:
        """Return values times importances. Shapes: [G, N] -> [G, N]"""
        return values if self.weight is None else values * self.weight

    def error(self, values: torch.Tensor) -> torch.Tensor:
        """Return the weighted squared error of each group. Shapes: values [G, N] -> [N].
        Mutates: values"""
        wrong = values.sub_(self.x).square_()
        if self.weight is not None:
            wrong.mul_(self.weight)
        return wrong.sum(0)


def integers(low: int, high: int) -> Rounding:
    """Return the rounding to whole numbers of a range."""
    return lambda scaled: scaled.round_().clamp_(low, high)


def inverse(scales: torch.Tensor) -> torch.Tensor:
    """Return 1 / scale, and 0 for 0."""
    return torch.where(scales == 0, 0.0, scales.reciprocal())


def scales(group: Group, rounding: Rounding, ends: Sequence[float]) -> torch.Tensor:
    """Return the best scale of each group: x is about scale * level.

    `ends` are the candidates: the levels, before rounding, that the largest magnitude may get.
    Shapes: -> [N]
    """
    high, low = group.x.amax(0), group.x.amin(0)
    peak = inverse(torch.where(high > -low, high, low))
    wx = group.weighted(group.x)
    best = torch.zeros_like(high)
    score = torch.zeros_like(high)
    for end in ends:
        levels = rounding(group.x * (peak * end))
        dot = (wx * levels).sum(0)
        norm = (
            group.weighted(levels).mul_(levels).sum(0)
            if group.weight is not None
            else (levels.square_().sum(0))
        )
        scale = dot * inverse(norm)
        gain = dot * scale  # how much the error is less than that of zeros
        is_better = gain > score
        best = torch.where(is_better, scale, best)
        score = torch.where(is_better, gain, score)
    return best


def ranges(
    group: Group, high: int, ends: Sequence[float], *, is_free: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best scale and offset of each group: x is about scale * level + offset, with
    levels 0 to `high`. `ends` are the candidates: the levels that the group's range may span;
    an offset is at most 0 unless it `is_free`. Shapes: -> 2 x [N]"""
    x, wx = group.x, group.weighted(group.x)
    low, span = x.amin(0), x.amax(0)
    if not is_free:
        low.clamp_(max=0)
    span = inverse(span - low)
    total = wx.new_full(low.shape, len(x)) if group.weight is None else group.weight.sum(0)
    total_x, rounding = wx.sum(0), integers(0, high)
    scale, offset = torch.zeros_like(low), low.clone()
    score = torch.full_like(low, -torch.inf)
    shifted = x - low
    for end in ends:
        levels = rounding(shifted * (span * end))
        found = _fitted(group, levels, wx, total, total_x, is_free=is_free)
        is_better = found[2] > score
        scale, offset, score = (
            torch.where(is_better, new, old)
            for new, old in zip(found, (scale, offset, score), strict=True)
        )
    return scale, offset


def _fitted(
    group: Group,
    levels: torch.Tensor,
    wx: torch.Tensor,
    total: torch.Tensor,
    total_x: torch.Tensor,
    *,
    is_free: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scale and the offset of least squares for these levels, and how much less the
    error is than that of zeros. Shapes: levels, wx [G, N] -> 3 x [N]. Mutates: levels"""
    dot = (wx * levels).sum(0)
    weighted = group.weighted(levels)
    first = weighted.sum(0)
    second = (weighted * levels).sum(0)
    det = total * second - first * first
    inverse_det = inverse(torch.where(det > SINGULAR * total * second, det, 0.0))
    scale = (total * dot - first * total_x) * inverse_det
    offset = (second * total_x - first * dot) * inverse_det
    is_flat = inverse_det == 0  # one level for all
    is_through_zero = is_flat & (second > 0)
    if not is_free:
        is_through_zero |= offset > 0
    scale = torch.where(is_through_zero, dot * inverse(second), scale)
    offset = torch.where(is_through_zero, 0.0, offset)
    offset = torch.where(is_flat & ~is_through_zero, total_x * inverse(total), offset)
    return scale, offset, scale * dot + offset * total_x


def codes(
    group: Group, rounding: Rounding, best: torch.Tensor, low: int, high: int, rounds: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a float16 step of each block and its groups' whole codes `low` to `high`: scales are
    step * code. Codes and steps are improved in turn.

    Shapes: best [B, S], S groups of a block -> steps [B], codes [B, S], both float32
    """
    peak = best.gather(1, best.abs().argmax(1, keepdim=True)).squeeze(1)
    steps = _half(peak / low)
    found = (best * inverse(steps).unsqueeze(1)).round().clamp_(low, high)
    for _ in range(rounds):
        found = _nearby(group, rounding, steps, found, low, high)
        scale = (steps.unsqueeze(1) * found).flatten()
        levels = rounding(group.x * inverse(scale)).mul_(found.flatten())
        weighted = group.weighted(levels)
        dot = (weighted * group.x).sum(0).view_as(found).sum(1)
        norm = (weighted * levels).sum(0).view_as(found).sum(1)
        steps = _half(torch.where(norm > 0, dot * inverse(norm), steps))
    return steps, found


def _nearby(
    group: Group,
    rounding: Rounding,
    steps: torch.Tensor,
    current: torch.Tensor,
    low: int,
    high: int,
) -> torch.Tensor:
    """Return the codes that are best of these and those next to them. Shapes: -> [B, S]"""
    best, smallest = current, torch.full_like(current, torch.inf)
    for change in (0, -1, 1):
        tried = (current + change).clamp_(low, high)
        scale = (steps.unsqueeze(1) * tried).flatten()
        error = group.error(rounding(group.x * inverse(scale)).mul_(scale)).view_as(tried)
        best = torch.where(error < smallest, tried, best)
        smallest = torch.minimum(error, smallest)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Float16 steps of blocks and whole codes of groups: a weight is step * code * level +
    offset_step * offset_code. Shapes: steps, offset_steps [B]; codes, offset_codes [B, S]"""

    steps: torch.Tensor
    codes: torch.Tensor
    offset_steps: torch.Tensor
    offset_codes: torch.Tensor

    def scale(self) -> torch.Tensor:
        """Return the scale of every group. Shapes: [N]"""
        return (self.steps.unsqueeze(1) * self.codes).flatten()

    def offset(self) -> torch.Tensor:
        """Return the offset of every group. Shapes: [N]"""
        return (self.offset_steps.unsqueeze(1) * self.offset_codes).flatten()

    def levels(self, group: Group, rounding: Rounding) -> torch.Tensor:
        """Return the level of every weight. Shapes: [G, N]"""
        return rounding((group.x - self.offset()).mul_(inverse(self.scale())))


def code_pairs(
    group: Group,
    rounding: Rounding,
    best: tuple[torch.Tensor, torch.Tensor],
    highest: int,
    rounds: int,
) -> Steps:
    """Return steps and codes 0 to `highest` for scales and offsets. Shapes: best 2 x [B, S]"""
    found = [_coded(one, highest) for one in best]
    steps = Steps(
        steps=found[0][0], codes=found[0][1], offset_steps=found[1][0], offset_codes=found[1][1]
    )
    for _ in range(rounds):
        steps = _refitted(group, rounding, _nearby_pairs(group, rounding, steps, highest))
    return steps


def _coded(best: torch.Tensor, highest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a step of each block and the codes. Shapes: [B, S] -> [B], [B, S]"""
    place = best.abs().argmax(1, keepdim=True)
    steps = _half(best.gather(1, place).squeeze(1) / highest)
    return steps, (best * inverse(steps).unsqueeze(1)).round().clamp_(0, highest)


def _nearby_pairs(group: Group, rounding: Rounding, steps: Steps, highest: int) -> Steps:
    """Return the codes that are best of these and those next to them."""
    smallest = torch.full_like(steps.codes, torch.inf)
    best = steps
    for change in (0, -1, 1):
        for offset_change in (0, -1, 1):
            tried = Steps(
                steps=steps.steps,
                codes=(steps.codes + change).clamp_(0, highest),
                offset_steps=steps.offset_steps,
                offset_codes=(steps.offset_codes + offset_change).clamp_(0, highest),
            )
            scale, offset = tried.scale(), tried.offset()
            levels = rounding((group.x - offset).mul_(inverse(scale)))
            error = group.error(levels.mul_(scale).add_(offset)).view_as(smallest)
            is_better = error < smallest
            best = Steps(
                steps=steps.steps,
                codes=torch.where(is_better, tried.codes, best.codes),
                offset_steps=steps.offset_steps,
                offset_codes=torch.where(is_better, tried.offset_codes, best.offset_codes),
            )
            smallest = torch.minimum(error, smallest)
    return best


def _refitted(group: Group, rounding: Rounding, steps: Steps) -> Steps:
    """Return the steps that least squares find for these codes; codes stay."""
    parts = steps.levels(group, rounding).mul_(steps.codes.flatten())
    weighted = group.weighted(parts)
    shape, offsets = steps.codes.shape, steps.offset_codes

    def summed(values: torch.Tensor) -> torch.Tensor:
        return values.sum(0).view(shape)

    total = offsets.new_full(shape, len(parts)) if group.weight is None else summed(group.weight)
    second = summed(weighted * parts).sum(1)
    mixed = (summed(weighted) * offsets).sum(1)
    square = (total * offsets.square()).sum(1)
    dot = summed(weighted * group.x).sum(1)
    offset_dot = (summed(group.weighted(group.x)) * offsets).sum(1)
    det = second * square - mixed * mixed
    is_solved = det > SINGULAR * second * square
    inverse_det = inverse(torch.where(is_solved, det, 0.0))
    found = (square * dot - mixed * offset_dot) * inverse_det
    found_offset = (second * offset_dot - mixed * dot) * inverse_det
    is_solved &= (found > 0) & (found_offset <= 0)
    return Steps(
        steps=torch.where(is_solved, _half(found), steps.steps),
        codes=steps.codes,
        offset_steps=torch.where(is_solved, _half(found_offset), steps.offset_steps),
        offset_codes=steps.offset_codes,
    )


def _half(values: torch.Tensor) -> torch.Tensor:
    """Return float16 numbers as float32."""
    return values.half().float()
