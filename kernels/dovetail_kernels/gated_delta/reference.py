"""The definition of gated_delta in torch: one token after the other, in float32."""

from __future__ import annotations

import torch
from torch.nn import functional

from dovetail_kernels.states import pieces

EPS = 1e-6
"""Added to the square of a key's or query's length."""


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay_in: torch.Tensor,
    beta_in: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
    beta_scale: float = 1.0,
    least_log: float = 0.0,
) -> torch.Tensor:
    """Return out = q S (see the op), in v's dtype.

    Shapes: q and k [T, K, D], v [T, H, V], decay_in [T, H] or [T, H, D], beta_in [T, H], a_log [H],
    dt_bias [H] or [H, D], state [N, H, D, V] -> [T, H, V]
    Mutates: state
    """
    out = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    group = v.shape[1] // k.shape[1]
    q, k = normed(q, group) * scale, normed(k, group)
    decay, beta = (
        logs_of(decay_in, a_log, dt_bias, least_log).exp(),
        beta_scale * beta_in.float().sigmoid(),
    )
    decay = decay if decay.dim() == 3 else decay.unsqueeze(-1)
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        s = start_of(state, piece.source)
        for t in range(piece.first, piece.last):
            s = decay[t].unsqueeze(-1) * s
            wrong = v[t].float() - (k[t].unsqueeze(-1) * s).sum(1)
            s = s + k[t].unsqueeze(-1) * (beta[t].unsqueeze(-1) * wrong).unsqueeze(1)
            out[t] = (q[t].unsqueeze(-1) * s).sum(1)
            s = s.to(state.dtype).float()
        state[piece.target] = s.to(state.dtype)
    return out.to(v.dtype)


def normed(x: torch.Tensor, group: int) -> torch.Tensor:
    """Return rows of length 1, each head `group` times. Shapes: [T, K, D] -> [T, K * group, D]"""
    wide = x.float()
    wide = wide * (wide.square().sum(-1, keepdim=True) + EPS).rsqrt()
    return wide.repeat_interleave(group, dim=1)


def logs_of(
    decay_in: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, least_log: float = 0.0
) -> torch.Tensor:
    """Return the decays' logarithms.

    Shapes: decay_in [T, H] or [T, H, D], a_log [H], dt_bias [H] or [H, D] -> as decay_in
    """
    rate = a_log.exp() if dt_bias.dim() == 1 else a_log.exp().unsqueeze(-1)
    x = decay_in.float() + dt_bias
    return least_log * (rate * x).sigmoid() if least_log else -rate * functional.softplus(x)


def start_of(state: torch.Tensor, source: int | None) -> torch.Tensor:
    """Return the state that a piece begins with: the one in block `source`, or zeros."""
    return torch.zeros_like(state[0]).float() if source is None else state[source].float()
