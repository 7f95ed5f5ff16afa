"""The arithmetic of GPTQ.

Source: Frantar et al., 2022, algorithm 1 (https://arxiv.org/abs/2210.17323).
Shape letters: O outputs, I inputs, G inputs per group.
"""

from __future__ import annotations

import torch

from dovetail_plugins.quantizers._rounding import even_steps, grouped, stored_steps

AT_ONCE = 128
"""Inputs whose errors reach the inputs after them together: one product in place of many."""
SHRINKS = tuple(1 - 0.02 * number for number in range(21))
"""Shares of the widest step that are tried: a narrower one cuts the ends and rounds the rest
finer."""


def best_steps(
    weight: torch.Tensor, strength: torch.Tensor, group: int, *, bits: int
) -> torch.Tensor:
    """Return the steps with the least error, every input weighed by its strength.

    Shapes: weight [O, I], strength [I] -> [O, I / G] float16
    """
    widest = even_steps(weight, group, bits=bits, dtype=torch.float32)
    parts, weights = grouped(weight, group), strength.view(-1, group)
    half = 1 << (bits - 1)
    best, min_error = widest, torch.full(widest.shape, torch.inf)
    for share in SHRINKS:
        steps = stored_steps(widest * share, torch.float16)
        wide = steps.float().unsqueeze(-1)
        wrong = (parts / wide).round_().clamp_(-half, half - 1).mul_(wide).sub_(parts)
        error = (wrong.square_() * weights).sum(-1)
        is_better = error < min_error
        best = torch.where(is_better, steps.float(), best)
        min_error = torch.where(is_better, error, min_error)
    return best.to(torch.float16)


def compensated(
    weight: torch.Tensor, gram: torch.Tensor, steps: torch.Tensor, *, bits: int, damping: float
) -> torch.Tensor:
    """Return levels counted from 0, every input's error made up for by those after it.

    Shapes: weight [O, I], gram [I, I], steps [O, I / G] -> [O, I] uint8
    """
    order = torch.argsort(gram.diagonal(), descending=True, stable=True)
    # Inputs are along the first axis here: each is contiguous.
    work = weight.T[order].contiguous()
    wide = steps.float().T.repeat_interleave(weight.shape[1] // steps.shape[1], dim=0)[order]
    after = _influence(gram[order][:, order], damping)
    codes = torch.empty(work.shape, dtype=torch.uint8)
    half, inputs = 1 << (bits - 1), len(work)
    for start in range(0, inputs, AT_ONCE):
        end = min(start + AT_ONCE, inputs)
        errors = torch.empty(end - start, work.shape[1])
        for place in range(start, end):
            step, own = wide[place], work[place]
            level = (own / step).round_().clamp_(-half, half - 1)
            codes[place] = (level + half).to(torch.uint8)
            error = (own - level * step).div_(after[place, place])
            work[place:end].addr_(after[place, place:end], error, alpha=-1)
            errors[place - start] = error
        work[end:].addmm_(after[start:end, end:].T, errors, alpha=-1)
    values = torch.empty_like(codes)
    values[order] = codes
    return values.T.contiguous()


def _influence(gram: torch.Tensor, damping: float) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of the damped gram. Inputs that were always 0
    are independent of the others. Shapes: [I, I] -> [I, I]"""
    steady = gram.double()
    diagonal = steady.diagonal()
    mean = float(diagonal.mean())
    diagonal[diagonal == 0] = mean or 1.0
    while True:
        damped = steady + torch.eye(len(steady), dtype=steady.dtype) * damping * (mean or 1.0)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not bool(failed):
            break
        damping *= 10  # rounding has made the sums indefinite
    inverse = torch.cholesky_inverse(factor)
    return torch.linalg.cholesky(inverse, upper=True).float()
