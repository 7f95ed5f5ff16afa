"""The definition of ssd in torch: one token after the other, in float32."""

from __future__ import annotations

import torch
from torch.nn import functional

from dovetail_kernels.states import pieces


def reference(
    x: torch.Tensor,
    dt: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    dt_limit: tuple[float, float],
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return out = h c + d x (see the op), in x's dtype.

    Shapes: x [T, H, P], dt [T, H], a, d, dt_bias [H], b and c [T, G, S], state [N, H, P, S] ->
    [T, H, P]
    Mutates: state
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    delta = steps(x, dt, dt_bias, dt_limit)
    decay, driven = (delta * a).exp(), delta.unsqueeze(-1) * x.float()
    group = x.shape[1] // b.shape[1]
    b, c = (one.float().repeat_interleave(group, dim=1) for one in (b, c))
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        h = start_of(state, piece.source)
        for t in range(piece.first, piece.last):
            h = decay[t, :, None, None] * h + driven[t, :, :, None] * b[t, :, None, :]
            out[t] = (h * c[t, :, None, :]).sum(-1)
            h = h.to(state.dtype).float()
        state[piece.target] = h.to(state.dtype)
    if d is not None:
        out += d.unsqueeze(-1) * x.float()
    return out.to(x.dtype)


def steps(
    x: torch.Tensor,
    dt: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    dt_limit: tuple[float, float],
) -> torch.Tensor:
    """Return delta. Shapes: x [T, H, P], dt [T, H], dt_bias [H] -> [T, H] float32"""
    if dt is None:
        return torch.ones(x.shape[:2], device=x.device)
    raw = dt.float() if dt_bias is None else dt.float() + dt_bias
    return functional.softplus(raw).clamp(*dt_limit)


def start_of(state: torch.Tensor, source: int | None) -> torch.Tensor:
    """Return the state that a piece begins with: the one in block `source`, or zeros."""
    return torch.zeros_like(state[0]).float() if source is None else state[source].float()
