"""ssd in torch by matrix products, parallel over the tokens of a chunk: the fallback if there is
neither the native library nor a GPU kernel.

With l the sums of delta a within a chunk and h the state before it: out_i = sum over j <= i of
exp(l_i - l_j) (c_i b_j) delta_j x_j + exp(l_i) h c_i; and h becomes exp(l_n) h + sum over j of
exp(l_n - l_j) delta_j x_j (outer) b_j. Source: Dao & Gu, "Transformers are SSMs", 2024, section 6
"""

from __future__ import annotations

import torch

from dovetail_kernels.gpu import FLOAT_DTYPES
from dovetail_kernels.op import Implementation
from dovetail_kernels.ssd.reference import start_of, steps
from dovetail_kernels.states import pieces

CHUNK_TOKENS = 64


def run(
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
    """Return out = h c + d x (see the op). A 16-bit state is rounded when it is stored.

    Shapes: x [T, H, P], dt [T, H], a, d, dt_bias [H], b and c [T, G, S], state [N, H, P, S] ->
    [T, H, P]
    Mutates: state
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    delta = steps(x, dt, dt_bias, dt_limit)
    driven, logs = delta.unsqueeze(-1) * x.float(), delta * a
    group = x.shape[1] // b.shape[1]
    b, c = (one.float().repeat_interleave(group, dim=1) for one in (b, c))
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        h = start_of(state, piece.source)
        for first in range(piece.first, piece.last, CHUNK_TOKENS):
            some = slice(first, min(first + CHUNK_TOKENS, piece.last))
            output, h = _chunk(driven[some], logs[some], b[some], c[some], h)
            out[some] = output.transpose(0, 1)
        state[piece.target] = h.to(state.dtype)
    if d is not None:
        out += d.unsqueeze(-1) * x.float()
    return out.to(x.dtype)


def _chunk(
    driven: torch.Tensor, logs: torch.Tensor, b: torch.Tensor, c: torch.Tensor, h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a chunk's results without d x, and the state after it.

    Shapes: driven [n, H, P], logs [n, H], b and c [n, H, S], h [H, P, S] -> [H, n, P], [H, P, S]
    """
    driven, b, c = (one.transpose(0, 1) for one in (driven, b, c))
    sums = logs.cumsum(0).T  # [H, n]
    between = (sums.unsqueeze(2) - sums.unsqueeze(1)).tril().exp().tril()
    output = (c @ b.mT * between) @ driven + sums.exp().unsqueeze(2) * (c @ h.mT)
    left = (sums[:, -1:] - sums).exp().unsqueeze(2)
    return output, sums[:, -1].exp()[:, None, None] * h + (left * driven).mT @ b


CHUNKED = Implementation(
    name="chunked", function=run, devices=("cpu", "cuda"), dtypes=FLOAT_DTYPES, rank=1
)
