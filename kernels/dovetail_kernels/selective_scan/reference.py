"""The definition of selective_scan in torch: one token after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dovetail_kernels.states import pieces


def reference(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor | None,
    z: torch.Tensor | None,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (c . h + d x) silu(z), in x's dtype.

    Shapes: x, dt, z [T, D], a [D, S], b, c [T, S], d, dt_bias [D], state [N, D, S] -> [T, D].
    Mutates: state
    """
    delta = F.softplus(dt.float() if dt_bias is None else dt.float() + dt_bias)
    decay = (delta.unsqueeze(-1) * a).exp()
    driven = (delta * x.float()).unsqueeze(-1) * b.float().unsqueeze(1)
    output = x.float() * d
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        past = torch.zeros_like(state[0]) if piece.source is None else state[piece.source].clone()
        for t in range(piece.first, piece.last):
            h = decay[t] * past.float() + driven[t]
            output[t] += h @ c[t].float()
            past = h.to(state.dtype)
        state[piece.target] = past
    return (output if z is None else output * F.silu(z.float())).to(x.dtype)
