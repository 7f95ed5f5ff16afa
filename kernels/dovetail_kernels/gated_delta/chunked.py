"""gated_delta in torch by matrix products, parallel over the tokens of a chunk: the fallback if
there is neither the native library nor a GPU kernel.

With l the sums of the decays' logarithms within a chunk and S the state before it, tokens enter u =
(I + A)^-1 beta (v - exp(l) k S), with A_ij = beta_i exp(l_i - l_j) k_i k_j for j < i. Then out_i =
exp(l_i) q_i S + sum over j <= i of exp(l_i - l_j) (q_i k_j) u_j, and S becomes exp(l_n) S + sum
over j of exp(l_n - l_j) k_j (outer) u_j. Source: Yang et al., "Gated Delta Networks", 2024, section
3.3. If each channel of a key has its own decay, the products of k and k, q and k are sums over
decaying channels, in chunks short enough to hold them all: Kimi Team, "Kimi Linear", 2025, section
3
"""

from __future__ import annotations

import torch

from dovetail_kernels.gated_delta.reference import logs_of, normed, start_of
from dovetail_kernels.gpu import FLOAT_DTYPES
from dovetail_kernels.op import Implementation
from dovetail_kernels.states import pieces

CHUNK_TOKENS = 64
BY_CHANNEL_TOKENS = 16
"""Of a chunk whose products of tokens are held for each channel."""


def run(
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
    """Return out = q S (see the op). A 16-bit state is rounded when it is stored.

    Shapes: q and k [T, K, D], v [T, H, V], decay_in [T, H] or [T, H, D], beta_in [T, H], a_log [H],
    dt_bias [H] or [H, D], state [N, H, D, V] -> [T, H, V]
    Mutates: state
    """
    out = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    group = v.shape[1] // k.shape[1]
    q, k = normed(q, group) * scale, normed(k, group)
    logs, beta = (
        logs_of(decay_in, a_log, dt_bias, least_log),
        beta_scale * beta_in.float().sigmoid(),
    )
    size = CHUNK_TOKENS if logs.dim() == 2 else BY_CHANNEL_TOKENS
    logs = logs if logs.dim() == 3 else logs.unsqueeze(-1)
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        s = start_of(state, piece.source)
        for first in range(piece.first, piece.last, size):
            some = slice(first, min(first + size, piece.last))
            output, s = _chunk(q[some], k[some], v[some].float(), logs[some], beta[some], s)
            out[some] = output.transpose(0, 1)
        state[piece.target] = s.to(state.dtype)
    return out.to(v.dtype)


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    logs: torch.Tensor,
    beta: torch.Tensor,
    s: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a chunk's results and the state after it.

    Shapes: q and k [n, H, D], v [n, H, V], logs [n, H, 1 or D], beta [n, H], s [H, D, V] ->
    [H, n, V], s
    """
    q, k, v, logs = (one.transpose(0, 1) for one in (q, k, v, logs))
    sums, beta = logs.cumsum(1), beta.T.unsqueeze(2)
    decays = sums.exp()
    known = (beta * _products(k, k, sums)).tril(-1)
    entered = torch.linalg.solve_triangular(
        known, beta * (v - (decays * k) @ s), upper=False, unitriangular=True
    )
    output = (decays * q) @ s + _products(q, k, sums).tril() @ entered
    left = (sums[:, -1:] - sums).exp()
    return output, decays[:, -1].unsqueeze(-1) * s + (left * k).mT @ entered


def _products(a: torch.Tensor, k: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Return products of tokens i with keys j <= i, which have decayed since: the sums over
    channels of exp(l_i - l_j) a_i k_j. Shapes: a and k [H, n, D], sums [H, n, 1 or D] -> [H, n, n]
    """
    between = (sums.unsqueeze(2) - sums.unsqueeze(1)).clamp(max=0).exp()  # later j are masked
    if between.shape[-1] == 1:
        return a @ k.mT * between.squeeze(-1)
    return torch.einsum("hid,hjd,hijd->hij", a, k, between)


CHUNKED = Implementation(
    name="chunked", function=run, devices=("cpu", "cuda"), dtypes=FLOAT_DTYPES, rank=1
)
