"""selective_scan's long rows in Triton: chunks side by side, joined by a walk over their ends.

h_t = e_t h_{t-1} + g_t is the pair (e_t, g_t), and pairs that follow one another join to one: (e,
g) then (e', g') is (e' e, e' g + g'). So a chunk is a pair too: its tokens' result from a state of
zeros, and the share that they leave of an earlier state, which is exp(a sum of delta).
Source: Blelloch, "Prefix sums and their applications", 1990; Gu & Dao, "Mamba", 2023, section 3.3

- `sum_chunks`: the pair of each chunk, all chunks of all rows in parallel
- `walk`: the state before each chunk, from chunk to chunk of a row; stores states
- `scan`: the results of each chunk, in parallel, from the state before it

Within a chunk the state goes from token to token in registers, as in `token_by_token`. No exponent
is above 0 and there is no division by a decay, so strong decays are as exact as weak ones.

A prompt of 2048, 2048 channels of 16 numbers, in bfloat16, on an H100 (132 processors of 4
schedulers, 1.7 GHz, 3.35 TB/s, 4 exponentials a cycle and scheduler), by arithmetic, not timed:
- floor: x, dt, z and the result 34 MB, 10 us; an exponential for each token and number, 67 million,
  19 us. Token by token 64 programs of a warp take 2048 steps, each of 275 instructions and a wait
  for memory (about 1000 cycles): 1.2 ms
- dependent steps: 32 tokens, twice, and 64 chunks. A tree over a chunk's tokens (log2 steps) would
  have fewer, but at twice the multiply-adds and with numbers that pass through shared memory; in
  registers nothing passes, and chunks are enough to fill the device
- programs: 64 chunks x 32 of 64 channels, 2048 warps of 127 registers a thread, 4 to a scheduler
- instructions: 279 (`sum_chunks`) and 419 (`scan`) for a token and 64 channels, 51 us, 37 of them
  for two exponentials a token and number. To keep the states of all tokens instead of the second
  would be 268 MB, written and read: 160 us
- ends of chunks: 8 MB, written twice and read twice; an L2 of 50 MB holds them. They are held for
  one layer's call. `walk` fetches them three chunks ahead
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.cuts import (
    RowCuts,
    chunk_at,
    chunks_before,
    is_chunked,
    number_of,
    span_of,
)
from dovetail_kernels.gpu.softplus import softplus
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

CHUNK_TOKENS, LEAST_TOKENS = 32, tl.constexpr(64)
"""Tokens of a chunk; of a row in the step, for it to be walked in chunks."""
NUMBERS, WALKED, CHANNELS = 1024, 256, 64
"""Numbers of state of a program, of one that walks, and the most channels of both."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sum_chunks(
    x, dt, b, a, dt_bias, ends, sums, query_start, seq_lens, row_block_tokens, rows, x_stride,
    dt_stride, b_stride, channels, size, HAS_BIAS: tl.constexpr, LEAST: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """Compute a chunk's state after a state of zeros, and the sums of its time steps. Shapes: h
    [BS, BD], ends [chunks, S, D], sums [chunks, D]"""
    chunk = tl.program_id(1)
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, chunk, LEAST, BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    channel, number = tl.program_id(0) * BD + tl.arange(0, BD), tl.arange(0, BS)
    inside, known = channel < channels, number < size
    both = known[:, None] & inside[None, :]
    rates = tl.load(a + channel[None, :] * size + number[:, None], mask=both, other=0.0) * LOG2_E
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(dt_bias + channel, mask=inside, other=0.0)
    h, total = tl.zeros((BS, BD), dtype=tl.float32), tl.zeros((BD,), dtype=tl.float32)
    for i in tl.range(count, loop_unroll_factor=4):
        t = first + i
        raw = tl.load(dt + t * dt_stride + channel, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + t * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
        driving = tl.load(b + t * b_stride + number, mask=known, other=0.0).to(tl.float32)
        delta = softplus(raw + bias)
        total += delta
        h = tl.exp2(delta[None, :] * rates) * h + driving[:, None] * (delta * values)[None, :]
    before = chunk.to(tl.int64) * channels
    at = ends + before * size + number[:, None] * channels + channel[None, :]
    tl.store(at, h, mask=both)
    tl.store(sums + before + channel, total, mask=inside)


@triton.jit
def walk(
    a, ends, sums, state, query_start, seq_lens, block_table, row_block_tokens, rows, state_stride,
    table_stride, channels, size, LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Walk the state from chunk to chunk of a row; the state before a chunk replaces the chunk's
    own. Shapes: h [BS, BD]. Mutates: ends, state"""
    row = tl.program_id(1).to(tl.int64)
    _, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if not is_chunked(count, block_tokens, LEAST):
        return
    channel, number = tl.program_id(0) * BD + tl.arange(0, BD), tl.arange(0, BS)
    inside = channel < channels
    both = (number < size)[:, None] & inside[None, :]
    place = channel[None, :] * size + number[:, None]
    rates = tl.load(a + place, mask=both, other=0.0) * LOG2_E
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    h = tl.load(state + source * state_stride + place, mask=both & (start > 0), other=0.0)
    earlier = chunks_before(
        query_start, seq_lens, row_block_tokens, rows, row, LEAST, BLOCK_TOKENS, BT, BR
    ).to(tl.int64)
    last = start + count - 1
    own = number_of(start, block_tokens, BT)
    for i in tl.range(number_of(last, block_tokens, BT) - own + 1, num_stages=4):
        before = (earlier + i) * channels
        at = ends + before * size + number[:, None] * channels + channel[None, :]
        left = tl.load(at, mask=both, other=0.0)
        total = tl.load(sums + before + channel, mask=inside, other=0.0)
        after = tl.exp2(total[None, :] * rates) * h + left
        tl.store(at, h, mask=both)  # after `left` is used: its load from there is complete
        h = after
        _, end = span_of(own + i, start, count, block_tokens, BT)
        if is_kept(end - 1, last, block_tokens):
            target = block_of(block_table, table_stride, row, end - 1, block_tokens)
            tl.store(state + target * state_stride + place, h, mask=both)


@triton.jit
def _by_lines(at, apart, inside, size, BS: tl.constexpr, BD: tl.constexpr):
    """Return lines of numbers with the stride `apart`. This way all numbers of a channel are in one
    thread, and summing them up needs no other. Shapes: at [BD] -> [BS, BD]"""
    number, lines = tl.arange(0, BS), tl.zeros((BS, BD), tl.float32)
    for i in tl.static_range(BS):
        line = tl.load(at + i * apart, mask=inside & (i < size), other=0.0)
        lines = tl.where((number == i)[:, None], line[None, :], lines)
    return lines


@triton.jit
def scan(
    x, dt, b, c, z, a, d, dt_bias, ends, out, query_start, seq_lens, row_block_tokens, rows,
    x_stride, dt_stride, b_stride, c_stride, z_stride, channels, size, HAS_GATE: tl.constexpr,
    HAS_BIAS: tl.constexpr, LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """The results of a chunk, from the state before it. Shapes: h [BS, BD], ends [chunks, S, D]"""
    chunk = tl.program_id(1)
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, chunk, LEAST, BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    channel, number = tl.program_id(0) * BD + tl.arange(0, BD), tl.arange(0, BS)
    inside, known = channel < channels, number < size
    rates = _by_lines(a + channel * size, 1, inside, size, BS, BD) * LOG2_E
    skip = tl.load(d + channel, mask=inside, other=0.0)
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(dt_bias + channel, mask=inside, other=0.0)
    before = chunk.to(tl.int64) * size * channels
    h = _by_lines(ends + before + channel, channels, inside, size, BS, BD)
    for i in range(count):
        t = first + i
        raw = tl.load(dt + t * dt_stride + channel, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + t * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
        driving = tl.load(b + t * b_stride + number, mask=known, other=0.0).to(tl.float32)
        reading = tl.load(c + t * c_stride + number, mask=known, other=0.0).to(tl.float32)
        delta = softplus(raw + bias)
        h = tl.exp2(delta[None, :] * rates) * h + driving[:, None] * (delta * values)[None, :]
        result = tl.sum(h * reading[:, None], axis=0) + skip * values
        if HAS_GATE:
            gate = tl.load(z + t * z_stride + channel, mask=inside, other=0.0).to(tl.float32)
            result = result * (gate / (1.0 + tl.exp(-gate)))
        tl.store(out + t * channels + channel, result.to(out.dtype.element_ty), mask=inside)


def run_chunks(
    cut: RowCuts,
    out: torch.Tensor,
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
    row_block_tokens: torch.Tensor | None,
) -> None:
    """Compute the rows that go by chunks (see the op); the state is float32. Mutates: out, state"""
    (channels, size), rows = a.shape, len(seq_lens)
    ends = torch.empty(cut.most, size, channels, dtype=torch.float32, device=x.device)
    sums = torch.empty(cut.most, channels, dtype=torch.float32, device=x.device)
    numbers = triton.next_power_of_2(size)
    some, few = (
        min(max(1, limit // numbers), CHANNELS, triton.next_power_of_2(channels))
        for limit in (NUMBERS, WALKED)
    )
    tile = cut.constants | {"BD": some, "BS": numbers, "num_warps": 1}
    programs, has_bias = triton.cdiv(channels, some), dt_bias is not None
    sum_chunks[programs, cut.most](
        x, dt, b, a, dt_bias, ends, sums, query_start, seq_lens, row_block_tokens, rows,
        x.stride(0), dt.stride(0), b.stride(0), channels, size, HAS_BIAS=has_bias, **tile,
    )  # fmt: skip
    walk[triton.cdiv(channels, few), rows](
        a, ends, sums, state, query_start, seq_lens, block_table, row_block_tokens, rows,
        state.stride(0), block_table.stride(0), channels, size, **tile | {"BD": few},
    )  # fmt: skip
    scan[programs, cut.most](
        x, dt, b, c, z, a, d, dt_bias, ends, out, query_start, seq_lens, row_block_tokens, rows,
        x.stride(0), dt.stride(0), b.stride(0), c.stride(0), 0 if z is None else z.stride(0),
        channels, size, HAS_GATE=z is not None, HAS_BIAS=has_bias, **tile,
    )  # fmt: skip
