"""wkv in Triton: one program some channels of one row, its tokens one after the other.

The state stays in registers from a row's first token of the step to its last. A decode is a loop of
one token. The order of arithmetic is that of a single token, so a row's results do not depend on
how it is cut into steps.

Floor: states are read and written once, k, v, r and the result pass once, at the device's
bandwidth. A long prompt alone is below it: its tokens wait for each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

CHANNELS = 128
"""Channels that one program has."""


@triton.jit
def _rounded(x, like, ROUNDS: tl.constexpr):
    """Return what the state keeps of x, and that as float32."""
    if ROUNDS:
        x = nearest_bfloat16(x)
    kept = x.to(like.dtype.element_ty)
    return kept, kept.to(tl.float32)


@triton.jit
def _kernel(
    k, v, r, decay, first, state, out, query_start, seq_lens, block_table, row_block_tokens,
    k_stride, v_stride, r_stride, state_stride, table_stride, channels,
    ROUNDS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = channel < channels
    begin, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = (
        state + block_of(block_table, table_stride, row, start - 1, block_tokens) * state_stride
    )
    has_past = inside & (start > 0) & (count > 0)
    above = tl.load(source + channel, mask=has_past, other=0.0).to(tl.float32)
    below = tl.load(source + channels + channel, mask=has_past, other=0.0).to(tl.float32)
    top = tl.load(source + 2 * channels + channel, mask=has_past, other=0.0).to(tl.float32)
    top = tl.where(has_past, top, -1e38)
    falls = tl.load(decay + channel, mask=inside, other=0.0)
    raised = tl.load(first + channel, mask=inside, other=0.0)
    for i in range(count):
        t = begin + i
        key = tl.load(k + t * k_stride + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(v + t * v_stride + channel, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(r + t * r_stride + channel, mask=inside, other=0.0).to(tl.float32)
        most = tl.maximum(top, key + raised)
        old, fresh = tl.exp(top - most), tl.exp(key + raised - most)
        made = (old * above + fresh * value) / (old * below + fresh)
        made = made / (1.0 + tl.exp(-gate))
        tl.store(out + t * channels + channel, made.to(out.dtype.element_ty), mask=inside)
        most = tl.maximum(top + falls, key)
        old, fresh = tl.exp(top + falls - most), tl.exp(key - most)
        kept_above, above = _rounded(old * above + fresh * value, state, ROUNDS)
        kept_below, below = _rounded(old * below + fresh, state, ROUNDS)
        kept_top, top = _rounded(most, state, ROUNDS)
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
    """Return the gated averages (see the op). Rows of k, v and r may lie apart.

    Shapes: k, v, r [T, C], decay, first [C], state [N, 3, C] -> [T, C]. Mutates: state
    """
    channels = k.shape[1]
    out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    some = min(CHANNELS, triton.next_power_of_2(channels))
    _kernel[(len(seq_lens), triton.cdiv(channels, some))](
        k, v, r, decay, first, state, out, query_start, seq_lens, block_table, row_block_tokens,
        k.stride(0), v.stride(0), r.stride(0), state.stride(0), block_table.stride(0), channels,
        ROUNDS=state.dtype == torch.bfloat16, BLOCK_TOKENS=block_tokens, BC=some, num_warps=1,
    )  # fmt: skip
    return out
