"""The definition of latent attention in torch."""

from __future__ import annotations

import torch


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_size: int,
    may_round: bool = False,
    picks: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended latents; with `picks`, only at these positions of each query.

    `may_round` lets others round queries and softmax weights to bfloat16 if the cache is bfloat16.

    Shapes: q [T, H, L + R], cache [N, P, L + R], block_table [R, B], query_start [R + 1], seq_lens
    [R], picks [T, K], sinks [H] -> [T, H, L]
    """
    out = q.new_zeros(*q.shape[:2], latent_size)
    starts = query_start.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        part = slice(starts[row], starts[row + 1])
        positions = torch.arange(length, device=q.device)
        blocks = block_table[row].long()[positions // cache.shape[1]]
        latents = cache[blocks, positions % cache.shape[1]].float()
        scores = torch.einsum("thd,sd->ths", q[part].float(), latents) * scale
        own = torch.arange(length - (part.stop - part.start), length, device=q.device)
        scores = scores.masked_fill(positions > own[:, None, None], -torch.inf)
        if picks is not None:
            is_picked = (picks[part].unsqueeze(-1) == positions).any(dim=1)
            scores = scores.masked_fill(~is_picked.unsqueeze(1), -torch.inf)
        if sinks is not None:
            column = sinks.float().view(1, -1, 1).expand(len(scores), -1, 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(dim=-1)[..., :length]
        values = torch.einsum("ths,sd->thd", weights, latents[:, :latent_size])
        out[part] = values.to(q.dtype)
    return out
