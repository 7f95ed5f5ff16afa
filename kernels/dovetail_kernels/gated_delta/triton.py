"""gated_delta in Triton: rows of few tokens token by token, long ones in chunks.

Rows of few tokens: one program per some columns of the state of one head of one row. Tokens go one
after the other, the state in registers from a row's first token of the step to its last: it is read
once and written once a step and block. The order of arithmetic is that of a single token. Rows of
32 tokens and more: triton_chunks.py. A row's own tokens and block size decide between the two (if a
step has more tokens than rows), so its neighbours do not change its bits.

Floor of few tokens: states are read and written once, q, k, v and the result pass once, at the
device's bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gated_delta.reference import EPS
from dovetail_kernels.gated_delta.triton_chunks import LEAST_TOKENS, Chunks, log_of, run_chunks
from dovetail_kernels.gpu.cuts import is_chunked
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

NUMBERS = 4096
"""Numbers of state that one program has."""


@triton.jit
def _normed(x, known, eps):
    """Return numbers whose squares add up to 1. Shapes: [BD]"""
    wide = tl.load(x, mask=known, other=0.0).to(tl.float32)
    return wide / tl.sqrt(tl.sum(wide * wide, axis=0) + eps)


@triton.jit
def token_by_token(
    q, k, v, decay_in, beta_in, a_log, dt_bias, state, out, query_start, seq_lens, block_table,
    row_block_tokens, q_stride, k_stride, v_stride, decay_stride, beta_stride, state_stride,
    table_stride, heads, group, keys, values, scale, beta_scale, least_log, eps,
    HAS_LEAST: tl.constexpr, ROUNDS: tl.constexpr, LEAVES_LONG: tl.constexpr,
    BY_CHANNEL: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The state goes from token to token. LEAVES_LONG: rows that go by chunks are skipped.
    Shapes: s [BD, BV]"""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key, value = tl.arange(0, BD), tl.program_id(2) * BV + tl.arange(0, BV)
    known, inside = key < keys, value < values
    both = known[:, None] & inside[None, :]
    place = (head * keys + key)[:, None] * values + value[None, :]
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if LEAVES_LONG and is_chunked(count, block_tokens, LEAST_TOKENS):
        return
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = (start > 0) & (count > 0)
    s = tl.load(state + source * state_stride + place, mask=both & has_past, other=0.0)
    s = s.to(tl.float32)
    rate = tl.exp(tl.load(a_log + head))
    channel = head * keys + key
    if BY_CHANNEL:
        bias = tl.load(dt_bias + channel, mask=known, other=0.0)
    else:
        bias = tl.load(dt_bias + head)
    of_group = head // group * keys + key
    for i in range(count):
        t = first + i
        own_q = _normed(q + t * q_stride + of_group, known, eps) * scale
        own_k = _normed(k + t * k_stride + of_group, known, eps)
        own_v = tl.load(v + t * v_stride + head * values + value, mask=inside, other=0.0)
        beta = tl.load(beta_in + t * beta_stride + head).to(tl.float32)
        if BY_CHANNEL:
            raw = tl.load(decay_in + t * decay_stride + channel, mask=known, other=0.0)
            log = log_of(raw.to(tl.float32) + bias, rate, least_log, HAS_LEAST)
            s = tl.exp(log)[:, None] * s
        else:
            raw = tl.load(decay_in + t * decay_stride + head).to(tl.float32) + bias
            s = tl.exp(log_of(raw, rate, least_log, HAS_LEAST)) * s
        wrong = own_v.to(tl.float32) - tl.sum(own_k[:, None] * s, axis=0)
        s += own_k[:, None] * (beta_scale * wrong / (1.0 + tl.exp(-beta)))[None, :]
        result = tl.sum(own_q[:, None] * s, axis=0)
        at = out + (t * heads + head) * values + value
        tl.store(at, result.to(out.dtype.element_ty), mask=inside)
        if ROUNDS:
            s = nearest_bfloat16(s)
        stored = s.to(state.dtype.element_ty)
        s = stored.to(tl.float32)
        if is_kept(start + i, start + count - 1, block_tokens):
            target = block_of(block_table, table_stride, row, start + i, block_tokens)
            tl.store(state + target * state_stride + place, stored, mask=both)


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
    """Return out = q S (see the op). Tokens may be strided, heads are contiguous.

    Shapes: q and k [T, K, D], v [T, H, V], decay_in [T, H] or [T, H, D], beta_in [T, H], a_log [H],
    dt_bias [H] or [H, D], state [N, H, D, V] -> [T, H, V]
    Mutates: state
    """
    (_, heads, values), (key_heads, keys) = v.shape, k.shape[1:]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    numbers = triton.next_power_of_2(keys)
    some = min(max(1, NUMBERS // numbers), triton.next_power_of_2(values))
    by_channel, chunks = dt_bias.dim() == 2, None
    if len(v) > len(seq_lens):
        chunks = Chunks.of(q, v, block_tokens, by_channel=by_channel)
    token_by_token[(len(seq_lens), heads, triton.cdiv(values, some))](
        q, k, v, decay_in, beta_in, a_log, dt_bias, state, out, query_start, seq_lens, block_table,
        row_block_tokens, q.stride(0), k.stride(0), v.stride(0), decay_in.stride(0),
        beta_in.stride(0), state.stride(0), block_table.stride(0), heads, heads // key_heads, keys,
        values, scale, beta_scale, least_log, EPS, HAS_LEAST=least_log != 0.0,
        ROUNDS=state.dtype == torch.bfloat16, LEAVES_LONG=chunks is not None,
        BY_CHANNEL=by_channel, BLOCK_TOKENS=block_tokens,
        BD=numbers, BV=some, num_warps=4,
    )  # fmt: skip
    if chunks is not None:
        run_chunks(
            chunks, out, q, k, v, decay_in, beta_in, a_log, dt_bias, scale, state, query_start,
            seq_lens, block_table, block_tokens, row_block_tokens, beta_scale, least_log,
        )  # fmt: skip
    return out
