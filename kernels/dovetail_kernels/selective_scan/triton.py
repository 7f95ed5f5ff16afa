"""selective_scan in Triton: rows of few tokens token by token, long ones in chunks.

Rows of few tokens: one program some channels of one row, its tokens one after the other. The state
stays in registers from a row's first token of the step to its last; a decode is a loop of one
token. The order of arithmetic is that of a single token. Rows of 64 tokens and more:
triton_chunks.py. A row's own tokens and block size decide between the two (if a step has more
tokens than rows), so its neighbours do not change its bits.

Steps that end at chunk ends (every 32 tokens of a block) change no bit of a row; others change
float32 rounding. A state of 16 bits is rounded after every token, so its rows go token by token
however long they are, and no cut changes a bit.

Floor of few tokens: states are read and written once, x, dt, z and the result pass once, at the
device's bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.cuts import RowCuts, is_chunked
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.softplus import softplus
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of
from dovetail_kernels.selective_scan.triton_chunks import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    LOG2_E,
    run_chunks,
)

NUMBERS = 512
"""Numbers of state that one program has."""


@triton.jit
def token_by_token(
    x, dt, b, c, z, a, d, dt_bias, state, out, query_start, seq_lens, block_table,
    row_block_tokens, x_stride, dt_stride, b_stride, c_stride, z_stride, state_stride,
    table_stride, channels, size,
    HAS_GATE: tl.constexpr, HAS_BIAS: tl.constexpr, ROUNDS: tl.constexpr,
    LEAVES_LONG: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """The state goes from token to token. LEAVES_LONG: rows that go by chunks are skipped.
    Shapes: h [BD, BS]"""
    row = tl.program_id(0).to(tl.int64)
    channel, number = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BS)
    inside, known = channel < channels, number < size
    both = inside[:, None] & known[None, :]
    place = channel[:, None] * size + number[None, :]
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if LEAVES_LONG and is_chunked(count, block_tokens, LEAST_TOKENS):
        return
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = (start > 0) & (count > 0)
    h = tl.load(state + source * state_stride + place, mask=both & has_past, other=0.0)
    h = h.to(tl.float32)
    rates = tl.load(a + place, mask=both, other=0.0) * LOG2_E
    skip = tl.load(d + channel, mask=inside, other=0.0)
    bias = tl.zeros((BD,), dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias + channel, mask=inside, other=0.0)
    for i in range(count):
        t = first + i
        raw = tl.load(dt + t * dt_stride + channel, mask=inside, other=0.0).to(tl.float32) + bias
        values = tl.load(x + t * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
        driving = tl.load(b + t * b_stride + number, mask=known, other=0.0).to(tl.float32)
        reading = tl.load(c + t * c_stride + number, mask=known, other=0.0).to(tl.float32)
        delta = softplus(raw)
        h = tl.exp2(delta[:, None] * rates) * h + (delta * values)[:, None] * driving[None, :]
        result = tl.sum(h * reading[None, :], axis=1) + skip * values
        if HAS_GATE:
            gate = tl.load(z + t * z_stride + channel, mask=inside, other=0.0).to(tl.float32)
            result = result * (gate / (1.0 + tl.exp(-gate)))
        tl.store(out + t * channels + channel, result.to(out.dtype.element_ty), mask=inside)
        if ROUNDS:
            h = nearest_bfloat16(h)
        stored = h.to(state.dtype.element_ty)
        h = stored.to(tl.float32)
        if is_kept(start + i, start + count - 1, block_tokens):
            target = block_of(block_table, table_stride, row, start + i, block_tokens)
            tl.store(state + target * state_stride + place, stored, mask=both)


def run(
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
    """Return (c . h + d x) silu(z) (see the op). Rows of x, dt, b, c and z may be strided.

    Shapes: x, dt, z [T, D], a [D, S], b, c [T, S], d, dt_bias [D], state [N, D, S] -> [T, D].
    Mutates: state
    """
    channels, size = a.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    numbers = triton.next_power_of_2(size)
    some = min(max(1, NUMBERS // numbers), triton.next_power_of_2(channels))
    cut = None
    if state.dtype == torch.float32:
        cut = RowCuts.of(
            len(x), len(seq_lens), block_tokens, chunk_tokens=CHUNK_TOKENS,
            least_tokens=LEAST_TOKENS.value, has_own_sizes=row_block_tokens is not None,
        )  # fmt: skip
    token_by_token[(len(seq_lens), triton.cdiv(channels, some))](
        x, dt, b, c, z, a, d, dt_bias, state, out, query_start, seq_lens, block_table,
        row_block_tokens, x.stride(0), dt.stride(0), b.stride(0), c.stride(0),
        0 if z is None else z.stride(0), state.stride(0), block_table.stride(0), channels, size,
        HAS_GATE=z is not None, HAS_BIAS=dt_bias is not None, ROUNDS=state.dtype == torch.bfloat16,
        LEAVES_LONG=cut is not None, BLOCK_TOKENS=block_tokens, BD=some, BS=numbers, num_warps=1,
    )  # fmt: skip
    if cut is not None:
        run_chunks(
            cut, out, x, dt, a, b, c, d, dt_bias, z, state, query_start, seq_lens, block_table,
            row_block_tokens,
        )  # fmt: skip
    return out
