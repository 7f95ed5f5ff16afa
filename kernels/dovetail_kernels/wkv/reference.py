"""The definition of wkv in torch: one token after the other."""

from __future__ import annotations

import torch

from dovetail_kernels.states import pieces

NONE = -1e38
"""The largest logarithm of no weight."""


def reference(
    k: torch.Tensor,
    v: torch.Tensor,
    r: torch.Tensor,
    decay: torch.Tensor,
    first: torch.Tensor,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the gated averages, in k's dtype.

    Shapes: k, v, r [T, C], decay, first [C], state [N, 3, C] -> [T, C]. Mutates: state
    """
    gate, keys, values = r.float().sigmoid(), k.float(), v.float()
    out = torch.empty_like(keys)
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        if piece.source is None:
            past = torch.zeros(state.shape[1:], device=state.device)
            past[2] = NONE
        else:
            past = state[piece.source].float().clone()
        for t in range(piece.first, piece.last):
            (above, below), _, own = _under(past, keys[t] + first)
            out[t] = gate[t] * (above + own * values[t]) / (below + own)
            past[2] += decay
            (above, below), top, own = _under(past, keys[t])
            past = torch.stack([above + own * values[t], below + own, top])
            past = past.to(state.dtype).float()
        state[piece.target] = past.to(state.dtype)
    return out.to(k.dtype)


def _under(
    past: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a and b divided by e^top, top (the larger of both logarithms), and e^(key - top).

    Shapes: kept [3, C], key [C] -> [2, C], [C], [C]
    """
    top = torch.maximum(past[2], key)
    return (past[2] - top).exp() * past[:2], top, (key - top).exp()
