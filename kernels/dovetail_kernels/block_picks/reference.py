"""The definition of block_picks in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dovetail_kernels.index_picks.reference import MAX_PRODUCTS, best


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    num_picked: int,
    num_local: int,
) -> torch.Tensor:
    """Return the blocks of `block_size` tokens that each head of a query picks.

    Scores are computed in float64 (if the device has it) and rounded to float32, so that they
    hardly depend on other rows.

    Shapes: q [T, H, D], cache [N, P, D], block_table [R, C], query_start [R + 1], seq_lens [R] ->
    [T, H, num_picked] int32
    """
    wide = torch.float32 if q.device.type == "mps" else torch.float64
    heads, device = q.shape[1], q.device
    picks = torch.full((len(q), heads, num_picked), -1, dtype=torch.int32, device=device)
    starts = query_start.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        first, last = starts[row], starts[row + 1]
        positions = torch.arange(length, device=device)
        blocks = block_table[row].long()[positions // cache.shape[1]]
        keys = cache[blocks, positions % cache.shape[1]].to(wide)
        step = max(1, MAX_PRODUCTS // max(1, length * heads))
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            scores = torch.einsum("thd,sd->ths", q[part].to(wide), keys).float()
            own = torch.arange(length - last + start, length - last + part.stop, device=device)
            scores.masked_fill_(positions > own.view(-1, 1, 1), -torch.inf)
            found = _best_blocks(scores, own // block_size, block_size, num_picked, num_local)
            picks[part] = found
    return picks


def _best_blocks(
    scores: torch.Tensor, own: torch.Tensor, block_size: int, num_picked: int, num_local: int
) -> torch.Tensor:
    """Return the blocks that are picked; `own` are the queries' own. Shapes: scores [T, H, S], own
    [T] -> [T, H, num_picked] int32"""
    heads, count = scores.shape[1:]
    padded = F.pad(scores, (0, -count % block_size), value=-torch.inf)
    of_blocks = padded.unflatten(-1, (-1, block_size)).amax(dim=-1)
    blocks = torch.arange(of_blocks.shape[-1], device=scores.device)
    is_near = blocks > own.unsqueeze(1) - num_local
    of_blocks.masked_fill_((is_near & (blocks <= own.unsqueeze(1))).unsqueeze(1), torch.inf)
    found = best(of_blocks.flatten(0, 1), own.repeat_interleave(heads), num_picked)
    return found.unflatten(0, (-1, heads))
