"""gated_delta in torch by matrix products, parallel over the tokens of a chunk: the fallback where
there is neither the native library nor a GPU's kernel.

With l the sums of the decays' logarithms within a chunk and S the state before it, tokens enter
u = (I + A)^-1 beta (v - exp(l) k S), where A_ij = beta_i exp(l_i - l_j) k_i k_j for j < i. Then
out_i = exp(l_i) q_i S + sum over j <= i of exp(l_i - l_j) (q_i k_j) u_j, and S becomes exp(l_n) S +
sum over j of exp(l_n - l_j) k_j (outer) u_j. Source: Yang et al., "Gated Delta Networks", 2024,
section 3.3
"""

from __future__ import annotations

import torch

from dovetail_kernels.gated_delta.reference import logs_of, normed, start_of
from dovetail_kernels.gpu import FLOAT_DTYPES
from dovetail_kernels.op import Implementation
from dovetail_kernels.states import pieces

CHUNK_TOKENS = 64


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
) -> torch.Tensor:
    """Return out = q S (see the op). A state of 16 bits is rounded where it is kept.

    Shapes: q and k [T, K, D], v [T, H, V], decay_in and beta_in [T, H], a_log and dt_bias [H],
    state [N, H, D, V] -> [T, H, V]
    Mutates: state
    """
    out = torch.zeros(v.shape, dtype=torch.float32, device=v.device)
    group = v.shape[1] // k.shape[1]
    q, k = normed(q, group) * scale, normed(k, group)
    logs, beta = logs_of(decay_in, a_log, dt_bias), beta_in.float().sigmoid()
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        s = start_of(state, piece.source)
        for first in range(piece.first, piece.last, CHUNK_TOKENS):
            some = slice(first, min(first + CHUNK_TOKENS, piece.last))
            made, s = _chunk(q[some], k[some], v[some].float(), logs[some], beta[some], s)
            out[some] = made.transpose(0, 1)
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

    Shapes: q and k [n, H, D], v [n, H, V], logs and beta [n, H], s [H, D, V] -> [H, n, V], s
    """
    q, k, v = (one.transpose(0, 1) for one in (q, k, v))
    sums, beta = logs.cumsum(0).T, beta.T.unsqueeze(2)
    decays = sums.exp().unsqueeze(2)
    between = (sums.unsqueeze(2) - sums.unsqueeze(1)).tril().exp().tril()
    known = (beta * (k @ k.mT) * between).tril(-1)
    entered = torch.linalg.solve_triangular(
        known, beta * (v - decays * (k @ s)), upper=False, unitriangular=True
    )
    made = decays * (q @ s) + (q @ k.mT * between) @ entered
    left = (sums[:, -1:] - sums).exp().unsqueeze(2)
    return made, decays[:, -1:] * s + (left * k).mT @ entered


CHUNKED = Implementation(
    name="chunked", function=run, devices=("cpu", "cuda"), dtypes=FLOAT_DTYPES, rank=1
)
