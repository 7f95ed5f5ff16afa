"""The definition of group_fit in torch.

Sums go input by input, in order, so that other implementations can have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

HIGHEST_CODE = 127
"""Codes of scales and offsets are from minus this to this."""
SINGULAR = 1e-6
"""The share of its terms below which a determinant is only rounding."""
HALVES = (2.0**-20, 60000.0)
"""Steps in this range become float16 numbers."""
PART_VALUES = 1 << 18

Rounding = Callable[[torch.Tensor], torch.Tensor]
Fit = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""values, scales, steps, and offsets and offset_steps or None."""


def ends_of(bits: int, *, has_offsets: bool) -> Sequence[float]:
    """Return the candidates: how many levels a group's range, or its largest magnitude, may span
    before they are rounded."""
    if has_offsets:
        high = (1 << bits) - 1
        return _around(high + 0.3, 1.5, 13 if bits < 5 else 9)
    half = 1 << (bits - 1)
    return (*_around(-half, 1.0, 9), *_around(half - 0.4, 0.8, 5))


def _around(middle: float, spread: float, count: int) -> tuple[float, ...]:
    return tuple(middle + spread * (2 * i / (count - 1) - 1) for i in range(count))


def reference(
    weight: torch.Tensor,
    importances: torch.Tensor | None,
    *,
    bits: int,
    group: int,
    run: int,
    has_offsets: bool,
) -> Fit:
    """Return values, codes and steps (see the op). Shapes: weight [N, K], importances [K]"""
    rows = max(1, PART_VALUES // max(1, weight.shape[1]))
    parts = [
        _part(part, importances, bits, group, run, has_offsets=has_offsets)
        for part in weight.split(rows)
    ]
    joined = [
        None if found[0] is None else torch.cat([one for one in found if one is not None])
        for found in zip(*parts, strict=True)
    ]
    values, scales, steps, offsets, offset_steps = joined
    assert values is not None and scales is not None and steps is not None
    return values, scales, steps, offsets, offset_steps


def _part(
    weight: torch.Tensor,
    importances: torch.Tensor | None,
    bits: int,
    group: int,
    run: int,
    *,
    has_offsets: bool,
) -> Fit:
    outputs, inputs = weight.shape
    weighs = weight.new_ones(inputs, dtype=torch.float32) if importances is None else importances
    columns = Columns(
        x=_turned(weight.float(), group), w=_turned(weighs.expand(outputs, -1), group)
    )
    half = 1 << (bits - 1)
    low, high = (0, 2 * half - 1) if has_offsets else (-half, half - 1)

    def levels(x: torch.Tensor) -> torch.Tensor:
        return x.round().clamp_(low, high)

    ends = ends_of(bits, has_offsets=has_offsets)
    scale, offset = (_ranges if has_offsets else _scales)(columns, levels, ends)
    codes, steps = _coded(scale.view(outputs, -1), run)
    own = _spread(steps, codes, run)
    if not has_offsets:
        codes, _ = _refined(columns, levels, codes.flatten(), own, None, None)
        values = levels(columns.x * inverse(own * codes))
        return _back(values - low, outputs, inputs), _bytes(codes, outputs), steps, None, None
    offsets, offset_steps = _coded(offset.view(outputs, -1), run)
    own_offset = _spread(offset_steps, offsets, run)
    codes, found = _refined(columns, levels, codes.flatten(), own, offsets.flatten(), own_offset)
    assert found is not None
    values = levels((columns.x - own_offset * found) * inverse(own * codes))
    return (
        _back(values, outputs, inputs),
        _bytes(codes, outputs),
        steps,
        _bytes(found, outputs),
        offset_steps,
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """Groups of weights in columns, and how much each counts. Shapes: [G, N]"""

    x: torch.Tensor
    w: torch.Tensor

    def sums(self, *terms: torch.Tensor) -> list[torch.Tensor]:
        """Return sums over the inputs, in order. Shapes: [G, N] each -> [N] each"""
        totals = [torch.zeros_like(term[0]) for term in terms]
        for number in range(len(self.x)):
            for total, term in zip(totals, terms, strict=True):
                total += term[number]
        return totals


def _turned(rows: torch.Tensor, group: int) -> torch.Tensor:
    """Return groups of inputs in columns, filled up with zeros. Shapes: [N, K] -> [G, groups]"""
    padded = F.pad(rows, (0, -rows.shape[1] % group))
    return padded.reshape(-1, group).t().contiguous()


def _back(values: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """Return values row by row. Shapes: [G, groups] -> [N, K] uint8"""
    return values.t().reshape(outputs, -1)[:, :inputs].to(torch.uint8).contiguous()


def _bytes(codes: torch.Tensor, outputs: int) -> torch.Tensor:
    return codes.view(outputs, -1).to(torch.int8)


def _spread(steps: torch.Tensor, codes: torch.Tensor, run: int) -> torch.Tensor:
    """Return the step of every group. Shapes: [N, runs], [N, groups] -> [N * groups]"""
    return steps.repeat_interleave(run, dim=1)[:, : codes.shape[1]].flatten()


def inverse(x: torch.Tensor) -> torch.Tensor:
    """Return 1 / x, and 0 for 0."""
    return torch.where(x == 0, 0.0, 1.0 / x)


def _scales(
    columns: Columns, levels: Rounding, ends: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best scale of each group, and no offset."""
    high, low = columns.x.amax(0), columns.x.amin(0)
    peak = inverse(torch.where(high > -low, high, low))
    best, score = torch.zeros_like(high), torch.zeros_like(high)
    for end in ends:
        level = levels(columns.x * (peak * end))
        weighted = columns.w * level
        dot, norm = columns.sums(weighted * columns.x, weighted * level)
        found = dot * inverse(norm)
        gain = dot * found
        is_better = gain > score
        best, score = torch.where(is_better, found, best), torch.where(is_better, gain, score)
    return best, torch.zeros_like(best)


def _ranges(
    columns: Columns, levels: Rounding, ends: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best scale and offset of each group."""
    x, low = columns.x, columns.x.amin(0)
    span = inverse(x.amax(0) - low)
    total, total_x = columns.sums(columns.w, columns.w * x)
    best, offset = torch.zeros_like(low), torch.zeros_like(low)
    score = torch.full_like(low, -torch.inf)
    for end in ends:
        level = levels((x - low) * (span * end))
        weighted = columns.w * level
        dot, first, second = columns.sums(weighted * x, weighted, weighted * level)
        area = total * second
        det = area - first * first
        turned = torch.where(det > SINGULAR * area, 1.0 / det, 0.0)
        found = (total * dot - first * total_x) * turned
        added = (second * total_x - first * dot) * turned
        added = torch.where(turned != 0, added, total_x * inverse(total))
        gain = found * dot + added * total_x
        is_better = gain > score
        best, offset = torch.where(is_better, found, best), torch.where(is_better, added, offset)
        score = torch.where(is_better, gain, score)
    return best, offset


def _coded(found: torch.Tensor, run: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of numbers and the steps of runs. Shapes: [N, groups] -> the same, [N, runs]"""
    outputs, groups = found.shape
    runs = F.pad(found.abs(), (0, -groups % run)).view(outputs, -1, run)
    steps = runs.amax(2) / HIGHEST_CODE
    is_half = (steps >= HALVES[0]) & (steps <= HALVES[1])
    steps = torch.where(is_half, steps.half().float(), steps)
    own = steps.repeat_interleave(run, dim=1)[:, :groups]
    return _nearest_code(found, own), steps


def _nearest_code(found: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    return (found * inverse(steps)).round().clamp_(-HIGHEST_CODE, HIGHEST_CODE)


def _refined(
    columns: Columns,
    levels: Rounding,
    codes: torch.Tensor,
    steps: torch.Tensor,
    offsets: torch.Tensor | None,
    offset_steps: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the codes with the least error among these and their neighbours, each with the offset
    that is then best. Shapes: [N] each"""
    best, best_offset = codes, offsets
    smallest = torch.full_like(codes, torch.inf)
    for change in (0, -1, 1):
        tried = (codes + change).clamp(-HIGHEST_CODE, HIGHEST_CODE)
        scale = steps * tried
        factor, rest, other = inverse(scale), columns.x, offsets
        if offsets is not None and offset_steps is not None:
            level = levels((columns.x - offset_steps * offsets) * factor)
            total, left = columns.sums(columns.w, columns.w * (columns.x - scale * level))
            other = _nearest_code(left * inverse(total), offset_steps)
            rest = columns.x - offset_steps * other
        wrong = rest - scale * levels(rest * factor)
        (error,) = columns.sums(columns.w * wrong * wrong)
        is_better = error < smallest
        best = torch.where(is_better, tried, best)
        if best_offset is not None and other is not None:
            best_offset = torch.where(is_better, other, best_offset)
        smallest = torch.where(is_better, error, smallest)
    return best, best_offset
