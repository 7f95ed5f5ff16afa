"""The definition of sampling in torch: sort, cut, draw; one row at a time."""

from __future__ import annotations

import numpy as np
import torch

from dovetail_kernels.sample.definition import goal_of, target_of, uniforms, weights


def reference(
    logits: torch.Tensor,
    inverse_temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Return one token per row.

    Shapes: logits [S, V] float32, row maxima finite; inverse_temperature [S] float32 (0: greedy),
    top_k [S] int64 (0: off), top_p (1: off) and min_p (0: off) [S] float64, seed and position [S]
    int64 -> [S] int64
    """
    drawn = uniforms(seed.cpu().numpy().view(np.uint64), position.cpu().numpy())
    uniform = torch.from_numpy(drawn).to(logits.device)
    tokens = [
        _row(logits[i], inverse_temperature[i], int(top_k[i]), top_p[i], min_p[i], uniform[i])
        for i in range(len(logits))
    ]
    return torch.tensor(tokens, device=logits.device)


def _row(
    logits: torch.Tensor,
    inverse_temperature: torch.Tensor,
    top_k: int,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> int:
    """Return one row's token."""
    best = logits.amax()
    if inverse_temperature == 0:
        return int((logits == best).nonzero()[0])
    x = (logits - best) * inverse_temperature
    x = x.masked_fill(x < min_p.log().float(), -torch.inf)
    ordered = x.sort(descending=True).values[: top_k if top_k > 0 else len(x)]
    last = len(ordered) - 1
    if top_p < 1:
        sums = weights(ordered).long().cumsum(0)
        last = int((sums >= goal_of(sums[-1], top_p)).nonzero()[0])
    weight = weights(x).long().masked_fill(x < ordered[last], 0)
    sums = weight.cumsum(0)
    return int((sums > target_of(sums[-1], uniform)).nonzero()[0])
