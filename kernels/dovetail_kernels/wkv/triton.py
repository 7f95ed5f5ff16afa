"""wkv in Triton: rows of few tokens token by token, long ones in chunks.

Rows of few tokens: one program some channels of one row, its tokens one after the other. The state
stays in registers from a row's first token of the step to its last; a decode is a loop of one
token. The order of arithmetic is that of a single token. Rows of 64 tokens and more:
triton_chunks.py. A row's own tokens and block size decide between the two (if a step has more
tokens than rows), so its neighbours do not change its bits.

Steps that end at chunk ends (every 32 tokens of a block) change no bit of a row; others change
float32 rounding. A state of 16 bits is rounded after every token, so its rows go token by token
however long they are, and no cut changes a bit.

Floor of few tokens: states are read and written once, k, v, r and the result pass once, at the
device's bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.cuts import RowCuts, is_chunked
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of
from dovetail_kernels.wkv.triton_chunks import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    averaged,
    joined,
    past_of,
    run_chunks,
)

CHANNELS = 128
"""Channels that one program has."""


@triton.jit
def _rounded(x, like, ROUNDS: tl.constexpr):
    """Return x in the state's dtype, and that as float32."""
    if ROUNDS:
        x = nearest_bfloat16(x)
    stored = x.to(like.dtype.element_ty)
    return stored, stored.to(tl.float32)


@triton.jit
def token_by_token(
    k, v, r, decay, first, state, out, query_start, seq_lens, block_table, row_block_tokens,
    k_stride, v_stride, r_stride, state_stride, table_stride, channels,
    ROUNDS: tl.constexpr, LEAVES_LONG: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The state goes from token to token. LEAVES_LONG: rows that go by chunks are skipped."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = channel < channels
    begin, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if LEAVES_LONG and is_chunked(count, block_tokens, LEAST_TOKENS):
        return
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = inside & (start > 0) & (count > 0)
    above, below, top = past_of(state + source * state_stride, channel, channels, has_past)
    falls = tl.load(decay + channel, mask=inside, other=0.0)
    raised = tl.load(first + channel, mask=inside, other=0.0)
    for i in range(count):
        t = begin + i
        key = tl.load(k + t * k_stride + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(v + t * v_stride + channel, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(r + t * r_stride + channel, mask=inside, other=0.0).to(tl.float32)
        result = averaged(above, below, top, value, key + raised, gate)
        tl.store(out + t * channels + channel, result.to(out.dtype.element_ty), mask=inside)
        above, below, top = joined(above, below, top + falls, value, 1.0, key)
        kept_above, above = _rounded(above, state, ROUNDS)
        kept_below, below = _rounded(below, state, ROUNDS)
        kept_top, top = _rounded(top, state, ROUNDS)
        if is_kept(start + i, start + count - 1, block_tokens):
            block = block_of(block_table, table_stride, row, start + i, block_tokens)
            target = state + block * state_stride + channel
            tl.store(target, kept_above, mask=inside)
            tl.store(target + channels, kept_below, mask=inside)
            tl.store(target + 2 * channels, kept_top, mask=inside)


def run(
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
    """Return the gated averages (see the op). Rows of k, v and r may be strided.

    Shapes: k, v, r [T, C], decay, first [C], state [N, 3, C] -> [T, C]. Mutates: state
    """
    channels = k.shape[1]
    out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    some = min(CHANNELS, triton.next_power_of_2(channels))
    cut = None
    if state.dtype == torch.float32:
        cut = RowCuts.of(
            len(k), len(seq_lens), block_tokens, chunk_tokens=CHUNK_TOKENS,
            least_tokens=LEAST_TOKENS.value, has_own_sizes=row_block_tokens is not None,
        )  # fmt: skip
    token_by_token[(len(seq_lens), triton.cdiv(channels, some))](
        k, v, r, decay, first, state, out, query_start, seq_lens, block_table, row_block_tokens,
        k.stride(0), v.stride(0), r.stride(0), state.stride(0), block_table.stride(0), channels,
        ROUNDS=state.dtype == torch.bfloat16, LEAVES_LONG=cut is not None,
        BLOCK_TOKENS=block_tokens, BC=some, num_warps=1,
    )  # fmt: skip
    if cut is not None:
        run_chunks(
            cut, out, k, v, r, decay, first, state, query_start, seq_lens, block_table,
            row_block_tokens,
        )  # fmt: skip
    return out
