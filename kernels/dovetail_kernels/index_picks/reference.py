"""The definition of index_picks in torch."""

from __future__ import annotations

import torch

MAX_PRODUCTS = 1 << 22
"""How many products of heads are in memory at a time."""


def reference(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    num_picked: int,
) -> torch.Tensor:
    """Return the positions that each query picks.

    Scores are computed in float64 (if the device has it) and rounded to float32, so that they
    hardly depend on other rows.

    Shapes: q [T, H, D], weights [T, H], cache [N, P, D], block_table [R, B], query_start [R + 1],
    seq_lens [R] -> [T, num_picked] int32
    """
    wide = torch.float32 if q.device.type == "mps" else torch.float64
    picks = torch.full((len(q), num_picked), -1, dtype=torch.int32, device=q.device)
    starts = query_start.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        first, last = starts[row], starts[row + 1]
        positions = torch.arange(length, device=q.device)
        blocks = block_table[row].long()[positions // cache.shape[1]]
        keys = cache[blocks, positions % cache.shape[1]].to(wide)
        step = max(1, MAX_PRODUCTS // max(1, length * q.shape[1]))
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            products = torch.einsum("thd,sd->ths", q[part].to(wide), keys).relu_()
            scores = torch.einsum("th,ths->ts", weights[part].to(wide), products).float()
            own = torch.arange(length - last + start, length - last + part.stop, device=q.device)
            scores.masked_fill_(positions > own.unsqueeze(1), -torch.inf)
            picks[part] = best(scores, own, num_picked)
    return picks


def best(scores: torch.Tensor, own: torch.Tensor, num_picked: int) -> torch.Tensor:
    """Return the positions of the highest scores among those up to a query's own, in ascending
    order, then -1. Shapes: scores [T, S], own [T] -> [T, num_picked] int32"""
    count = scores.shape[1]
    order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :num_picked]
    order = torch.where(order > own.unsqueeze(1), count, order).sort(dim=-1).values
    picks = order.new_full((len(scores), num_picked), -1)
    picks[:, : order.shape[1]] = torch.where(order == count, -1, order)
    return picks.int()
