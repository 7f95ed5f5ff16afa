"""wkv's long rows in Triton: chunks side by side, joined by a walk over their ends.

A row's past is a triple (a / e^p, b / e^p, p), and so is the contribution of some tokens.
Consecutive triples join to one: with n tokens in the later, w the change of a logarithm per token
and q the larger of p + n w and p', it is e^(p + n w - q) times the earlier, plus e^(p' - q) times
the later, and q. No exponent is above 0. Source: Blelloch, "Prefix sums and their applications",
1990; Peng et al., "RWKV", 2023, appendix D

- `sum_chunks`: the triple of each chunk's own tokens, all chunks of all rows in parallel
- `walk`: the triple before each chunk, from chunk to chunk of a row; stores states
- `average`: the results of each chunk, in parallel, from the triple before it

Within a chunk tokens go one after the other in registers, as in `token_by_token`.

A prompt of 2048, 2048 channels, in bfloat16, on an H100 (132 processors of 4 schedulers, 1.7 GHz,
3.35 TB/s), by arithmetic, not timed:
- floor: k, v, r and the result 34 MB, 10 us. Token by token 16 programs of a warp take 2048 steps
  that each wait for memory (about 1000 cycles): 1.2 ms
- bytes: k and v are read twice, 50 MB, 15 us (an L2 of 50 MB holds some of them); ends of chunks
  1.6 MB, written twice and read twice. They are held for one layer's call
- dependent steps: 32 tokens, twice, and 64 chunks. A tree over a chunk's tokens (log2 steps) would
  take two exponentials for each of its joins and pass triples through shared memory
- programs: 64 chunks x 32 of 64 channels, 2048 warps, 4 to a scheduler, each with loads of three
  to four tokens under way, 128 bytes each: 2 MB, which is what 600 ns at 3.35 TB/s need
- instructions: 43 (`sum_chunks`) and 134 (`average`) for a token and 64 channels, 13 us
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
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

CHUNK_TOKENS, LEAST_TOKENS = 32, tl.constexpr(64)
"""Tokens of a chunk; of a row in the step, for it to be walked in chunks."""
CHANNELS = 64
"""Channels of a program."""
LOG2_E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(-1e38)
"""The largest logarithm of no weight."""


@triton.jit
def past_of(at, channel, channels, is_known):
    """Return the triple at an address, or the triple of no past."""
    above = tl.load(at + channel, mask=is_known, other=0.0).to(tl.float32)
    below = tl.load(at + channels + channel, mask=is_known, other=0.0).to(tl.float32)
    top = tl.load(at + 2 * channels + channel, mask=is_known, other=0.0).to(tl.float32)
    return above, below, tl.where(is_known, top, NONE)


@triton.jit
def joined(above, below, top, more_above, more_below, more_top):
    """Return the joined triple of two, each with its logarithm after both."""
    peak = tl.maximum(top, more_top)
    old, fresh = tl.exp2((top - peak) * LOG2_E), tl.exp2((more_top - peak) * LOG2_E)
    return old * above + fresh * more_above, old * below + fresh * more_below, peak


@triton.jit
def averaged(above, below, top, value, own, gate):
    """Return a token's result, whose own weight has the logarithm `own`."""
    above, below, _ = joined(above, below, top, value, 1.0, own)
    return above / below / (1.0 + tl.exp2(-gate * LOG2_E))


@triton.jit
def sum_chunks(
    k, v, decay, ends, query_start, seq_lens, row_block_tokens, rows, k_stride, v_stride, channels,
    LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Compute the contribution of a chunk's tokens. Shapes: ends [chunks, 3, C]"""
    chunk = tl.program_id(1)
    begin, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, chunk, LEAST, BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    falls = tl.load(decay + channel, mask=inside, other=0.0)
    above, below = tl.zeros((BC,), dtype=tl.float32), tl.zeros((BC,), dtype=tl.float32)
    top = above + NONE
    for i in tl.range(count, loop_unroll_factor=4):
        t = begin + i
        key = tl.load(k + t * k_stride + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(v + t * v_stride + channel, mask=inside, other=0.0).to(tl.float32)
        above, below, top = joined(above, below, top + falls, value, 1.0, key)
    at = ends + chunk.to(tl.int64) * 3 * channels + channel
    tl.store(at, above, mask=inside)
    tl.store(at + channels, below, mask=inside)
    tl.store(at + 2 * channels, top, mask=inside)


@triton.jit
def walk(
    decay, ends, state, query_start, seq_lens, block_table, row_block_tokens, rows, state_stride,
    table_stride, channels, LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Walk the past from chunk to chunk of a row; the past before a chunk replaces the chunk's own.
    Mutates: ends, state"""
    row = tl.program_id(1).to(tl.int64)
    _, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if not is_chunked(count, block_tokens, LEAST):
        return
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    falls = tl.load(decay + channel, mask=inside, other=0.0)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    above, below, top = past_of(
        state + source * state_stride, channel, channels, inside & (start > 0)
    )
    earlier = chunks_before(
        query_start, seq_lens, row_block_tokens, rows, row, LEAST, BLOCK_TOKENS, BT, BR
    ).to(tl.int64)
    last = start + count - 1
    own = number_of(start, block_tokens, BT)
    for i in tl.range(number_of(last, block_tokens, BT) - own + 1, num_stages=4):
        at = ends + (earlier + i) * 3 * channels + channel
        more_above = tl.load(at, mask=inside, other=0.0)
        more_below = tl.load(at + channels, mask=inside, other=0.0)
        more_top = tl.load(at + 2 * channels, mask=inside, other=0.0)
        begin, end = span_of(own + i, start, count, block_tokens, BT)
        fallen = top + (end - begin).to(tl.float32) * falls
        after = joined(above, below, fallen, more_above, more_below, more_top)
        tl.store(at, above, mask=inside)  # after the use of what was loaded from there
        tl.store(at + channels, below, mask=inside)
        tl.store(at + 2 * channels, top, mask=inside)
        above, below, top = after
        if is_kept(end - 1, last, block_tokens):
            block = block_of(block_table, table_stride, row, end - 1, block_tokens)
            target = state + block * state_stride + channel
            tl.store(target, above, mask=inside)
            tl.store(target + channels, below, mask=inside)
            tl.store(target + 2 * channels, top, mask=inside)


@triton.jit
def average(
    k, v, r, decay, first, ends, out, query_start, seq_lens, row_block_tokens, rows, k_stride,
    v_stride, r_stride, channels, LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The results of a chunk, from the past before it. Shapes: ends [chunks, 3, C]"""
    chunk = tl.program_id(1)
    begin, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, chunk, LEAST, BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < channels
    at = ends + chunk.to(tl.int64) * 3 * channels
    above, below, top = past_of(at, channel, channels, inside)
    falls = tl.load(decay + channel, mask=inside, other=0.0)
    raised = tl.load(first + channel, mask=inside, other=0.0)
    for i in tl.range(count, num_stages=4):
        t = begin + i
        key = tl.load(k + t * k_stride + channel, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(v + t * v_stride + channel, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(r + t * r_stride + channel, mask=inside, other=0.0).to(tl.float32)
        result = averaged(above, below, top, value, key + raised, gate)
        tl.store(out + t * channels + channel, result.to(out.dtype.element_ty), mask=inside)
        above, below, top = joined(above, below, top + falls, value, 1.0, key)


def run_chunks(
    cut: RowCuts,
    out: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    r: torch.Tensor,
    decay: torch.Tensor,
    first: torch.Tensor,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    row_block_tokens: torch.Tensor | None,
) -> None:
    """Compute the rows that go by chunks (see the op); the state is float32. Mutates: out, state"""
    channels, rows = k.shape[1], len(seq_lens)
    ends = torch.empty(cut.most, 3, channels, dtype=torch.float32, device=k.device)
    some = min(CHANNELS, triton.next_power_of_2(channels))
    tile = cut.constants | {"BC": some, "num_warps": 1}
    programs, steps = triton.cdiv(channels, some), (query_start, seq_lens, row_block_tokens, rows)
    sum_chunks[programs, cut.most](
        k, v, decay, ends, *steps, k.stride(0), v.stride(0), channels, **tile
    )
    walk[programs, rows](
        decay, ends, state, query_start, seq_lens, block_table, row_block_tokens, rows,
        state.stride(0), block_table.stride(0), channels, **tile,
    )  # fmt: skip
    average[programs, cut.most](
        k, v, r, decay, first, ends, out, *steps, k.stride(0), v.stride(0), r.stride(0), channels,
        **tile,
    )  # fmt: skip
