"""The definition of short_conv in torch: one block of a row after the other."""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.reference import ACTIVATIONS
from dovetail_kernels.states import pieces


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    activation: str = "none",
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return act(bias + the convolution of each row's inputs), in x's dtype.

    Shapes: x [T, C], weight [C, W], bias [C], state [N, C, W - 1] -> [T, C]. Mutates: state
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width, weights = weight.shape[1], weight.float()
    for piece in pieces(query_start, seq_lens, block_table, block_tokens, row_block_tokens):
        here = x[piece.first : piece.last]
        past = torch.zeros_like(state[0]) if piece.source is None else state[piece.source]
        inputs = torch.cat([past.T, here.to(state.dtype)]).float()
        output = here.float() * weights[:, -1]
        for i in range(width - 1):
            output = output + inputs[i : i + len(here)] * weights[:, i]
        if bias is not None:
            output = output + bias.float()
        out[piece.first : piece.last] = ACTIVATIONS[activation](output).to(x.dtype)
        state[piece.target] = inputs[-(width - 1) :].T.to(state.dtype)
    return out
