"""gated_delta's long rows in Triton: chunks that are prepared side by side, then walked in order.

Three kernels make what chunked.py says. `prepare` makes of each chunk and head the inverse of I + A
times beta, and the weights of queries and keys: all chunks of all rows at once. Where channels
decay by themselves `sum_channels`, `prepare_channels` (a program for each 16 tokens of a chunk) and
`invert` do. `walk` passes some columns of a head's state from chunk to chunk, in registers.

A chunk's place follows from positions alone: blocks are cut from their beginning into BT tokens. So
what a row's chunks are does not depend on the other rows, and steps that are cut at ends of chunks
give the same bits. Which program has which chunk every program finds by the sums of the rows' chunks:
no table, nothing that the host waits for.

The inverse is made by forward substitution within 16 tokens, then by (I + M)^-1 = (I + M^2)(I - M),
where M is what the blocks' inverses make of the blocks below them: M^4 = 0 with four. (The product
form for all 64 tokens would have binomials up to 10^17 in it where a prompt repeats one token.)

Where channels decay by themselves, exp(l_i - l_j) is not of one number: with r the sums before the
16 tokens of i it is exp(l_i - r) exp(r - l_j) for the tokens before them, neither of which is more
than 1, and within the 16 it is made for each pair and channel. Source: Kimi Team, "Kimi Linear",
2025, section 3.

Work, for a head of 128 x 128 and a chunk of 64: `walk` makes k S, (I + A)^-1 of it, q S, weights of
that and the state's product, 4.2 million multiply-adds; `prepare` k k, q k and four products of 64 x
64 x 64, 2.1. A prompt of 8192 and 32 heads: 52 GFLOP, all of them on the matrix units, of which 34
wait for each other in 128 chunks, three products deep each, where token by token 8192 do. With 32
columns a program there are 128 programs for the 132 processors of an H100.
Bytes: of each token and head BT numbers twice (134 MB, written once, read by four programs of a
head, from the second on in the cache), and D more where channels decay by themselves.
Registers of a thread, of 128: the state 32 (128 x 32), a chunk's keys 64, the rest passes through
shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dovetail_kernels.gated_delta.reference import EPS
from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.softplus import softplus
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

MOST_TOKENS, NUMBERS = 64, 8192
"""Tokens of a chunk, and with the key of all of them numbers."""
KINDS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
VALUES, CHANNELS = 32, 32
"""Columns of a program that walks, channels of one that sums."""
LEAST_TOKENS = tl.constexpr(32)
"""Of a row in the step, for it to be walked in chunks."""
SUB = tl.constexpr(16)
"""Tokens of a chunk that are solved one after the other; no block is smaller."""


@triton.jit
def is_chunked(count, block_tokens):
    """Return whether a row of so many tokens in the step is walked in chunks."""
    return (count >= LEAST_TOKENS) & (block_tokens >= SUB)


@triton.jit
def log_of(x, rate, least_log, HAS_LEAST: tl.constexpr):
    """Return the logarithms of decays."""
    if HAS_LEAST:
        return least_log / (1.0 + tl.exp(-rate * x))
    return -rate * softplus(x)


@triton.jit
def _number(position, block_tokens, BT: tl.constexpr):
    """Return which of the chunks of a row, counted from position 0, has a position."""
    of_block = (block_tokens + BT - 1) // BT
    return position // block_tokens * of_block + position % block_tokens // BT


@triton.jit
def _span(number, start, count, block_tokens, BT: tl.constexpr):
    """Return the positions begin .. end - 1 of a row's chunk that are in the step."""
    of_block = (block_tokens + BT - 1) // BT
    block = number // of_block
    begin = block * block_tokens + number % of_block * BT
    end = tl.minimum(begin + BT, (block + 1) * block_tokens)
    return tl.maximum(begin, start), tl.minimum(end, start + count)


@triton.jit
def _chunk(
    query_start, seq_lens, row_block_tokens, rows, index, BLOCK_TOKENS: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Return the first token of the step's chunk `index` and how many it has: 0 beyond the last."""
    row = tl.arange(0, BR)
    known = row < rows
    first = tl.load(query_start + row, mask=known, other=0)
    count = tl.load(query_start + row + 1, mask=known, other=0) - first
    start = tl.load(seq_lens + row, mask=known, other=0) - count
    if row_block_tokens is None:
        size = row * 0 + BLOCK_TOKENS
    else:
        size = tl.load(row_block_tokens + row, mask=known, other=1)
    last = _number(start + count - 1, size, BT)
    has_chunks = known & is_chunked(count, size)
    chunks = tl.where(has_chunks, last - _number(start, size, BT) + 1, 0)
    ends = tl.cumsum(chunks, axis=0)
    own = tl.minimum(tl.sum((ends <= index).to(tl.int32), axis=0), rows - 1)
    before = tl.sum(tl.where(row == own, ends - chunks, 0), axis=0)
    is_one = index < tl.sum(chunks, axis=0)
    first, count, start = row_tokens(query_start, seq_lens, own)
    block_tokens = tokens_of(row_block_tokens, own, BLOCK_TOKENS)
    number = _number(start, block_tokens, BT) + index - before
    begin, end = _span(number, start, count, block_tokens, BT)
    return first + begin - start, tl.where(is_one, end - begin, 0)


@triton.jit
def _lines(x, mask, eps):
    """Return lines and what makes the sum of their squares 1. Shapes: pointers [n, BD] -> [n, BD]
    as they lie there, [n]"""
    lines = tl.load(x, mask=mask, other=0.0)
    wide = lines.to(tl.float32)
    return lines, 1.0 / tl.sqrt(tl.sum(wide * wide, axis=1) + eps)


@triton.jit
def _inverse(a, BT: tl.constexpr, PRECISION: tl.constexpr):
    """Return (I + a)^-1. Shapes: a [BT, BT], strictly lower"""
    BLOCKS: tl.constexpr = BT // SUB
    token, own = tl.arange(0, BT), tl.arange(0, SUB)
    is_own = (token[:, None] // SUB) == (token[None, :] // SUB)
    blocks = tl.reshape(tl.where(is_own, a, 0.0), (BLOCKS, SUB, BLOCKS, SUB))
    blocks = tl.sum(blocks, axis=2)
    inverse = blocks * 0.0 + tl.where(own[:, None] == own[None, :], 1.0, 0.0)[None, :, :]
    for i in range(1, SUB):
        is_line = (own == i)[None, :, None]
        line = tl.sum(tl.where(is_line, blocks, 0.0), axis=1)
        known = tl.sum(line[:, :, None] * inverse, axis=1)
        inverse = tl.where(is_line, inverse - known[:, None, :], inverse)
    wide = tl.broadcast_to(inverse[:, :, None, :], (BLOCKS, SUB, BLOCKS, SUB))
    made = tl.where(is_own, tl.reshape(wide, (BT, BT)), 0.0)
    if BLOCKS > 1:
        below = tl.dot(made, tl.where(is_own, 0.0, a), input_precision=PRECISION)
        made -= tl.dot(below, made, input_precision=PRECISION)
        if BLOCKS > 2:
            twice = tl.dot(below, below, input_precision=PRECISION)
            made += tl.dot(twice, made, input_precision=PRECISION)
    return made


@triton.jit
def _beta(beta_in, at, there, beta_scale):
    """Return what tokens enter with, 0 where there are none."""
    raw = tl.load(beta_in + at, mask=there, other=0.0).to(tl.float32)
    return tl.where(there, beta_scale / (1.0 + tl.exp(-raw)), 0.0)


@triton.jit
def prepare(
    q, k, decay_in, beta_in, a_log, dt_bias, known, weights, sums, of_k, of_q, query_start,
    seq_lens, row_block_tokens, rows, q_stride, k_stride, decay_stride, beta_stride, heads, group, keys,
    scale, beta_scale, least_log, eps, HAS_LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A and the weights of a chunk of a head that decays as one. Shapes: known (A), weights
    [T, H, BT], sums, of_k, of_q [T, H]"""
    head = tl.program_id(1)
    first, count = _chunk(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    token, key = tl.arange(0, BT), tl.arange(0, BD)
    t, there = first + token, token < count
    inside = there[:, None] & (key < keys)[None, :]
    of_group = (head // group * keys + key)[None, :]
    lines_k, length_k = _lines(k + t[:, None] * k_stride + of_group, inside, eps)
    lines_q, length_q = _lines(q + t[:, None] * q_stride + of_group, inside, eps)
    length_q *= scale
    raw = tl.load(decay_in + t * decay_stride + head, mask=there, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head))
    logs = log_of(raw + tl.load(dt_bias + head), rate, least_log, HAS_LEAST)
    own = tl.cumsum(tl.where(there, logs, 0.0), axis=0)
    alone = t * heads + head
    tl.store(sums + alone, own, mask=there)
    tl.store(of_k + alone, length_k, mask=there)
    tl.store(of_q + alone, length_q, mask=there)
    is_until = token[:, None] >= token[None, :]
    between = tl.exp(tl.where(is_until, own[:, None] - own[None, :], -float("inf")))
    between *= length_k[None, :]
    at = alone[:, None] * BT + token[None, :]
    lines_k, lines_q = lines_k.to(KIND), lines_q.to(KIND)
    weight = tl.dot(lines_q, tl.trans(lines_k), input_precision=PRECISION)
    weight *= between * length_q[:, None]
    tl.store(weights + at, weight.to(weights.dtype.element_ty), mask=there[:, None])
    beta = _beta(beta_in, t * beta_stride + head, there, beta_scale)
    a = tl.dot(lines_k, tl.trans(lines_k), input_precision=PRECISION)
    a *= between * (length_k * beta)[:, None]
    a = tl.where(token[:, None] > token[None, :], a, 0.0)
    tl.store(known + at, a, mask=there[:, None])


@triton.jit
def sum_channels(
    decay_in, a_log, dt_bias, sums, query_start, seq_lens, row_block_tokens, rows, decay_stride,
    heads, keys, least_log, HAS_LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """The sums of the logarithms of some channels' decays within a chunk. Shapes: [T, H, D]"""
    head = tl.program_id(1)
    first, count = _chunk(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    token, key = tl.arange(0, BT), tl.program_id(2) * BD + tl.arange(0, BD)
    t, there, known = first + token, token < count, key < keys
    inside, channel = there[:, None] & known[None, :], head * keys + key
    bias = tl.load(dt_bias + channel, mask=known, other=0.0)
    raw = tl.load(decay_in + t[:, None] * decay_stride + channel[None, :], mask=inside, other=0.0)
    rate = tl.exp(tl.load(a_log + head))
    logs = log_of(raw.to(tl.float32) + bias[None, :], rate, least_log, HAS_LEAST)
    logs = tl.where(inside, logs, 0.0)
    at = (t[:, None] * heads + head) * keys + key[None, :]
    tl.store(sums + at, tl.cumsum(logs, axis=0), mask=inside)


@triton.jit
def prepare_channels(
    q, k, beta_in, sums, known, weights, of_k, of_q, query_start, seq_lens, row_block_tokens,
    rows, q_stride, k_stride, beta_stride, heads, group, keys, scale, beta_scale, eps,
    BLOCK_TOKENS: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """16 tokens of a chunk of a head whose channels decay by themselves: their lines of A and of
    the weights. Shapes: known (A), weights [T, H, BT], sums [T, H, D], of_k, of_q [T, H]"""
    head, begin = tl.program_id(1), tl.program_id(2) * SUB
    first, count = _chunk(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), BLOCK_TOKENS, BT, BR
    )
    if count <= begin:
        return
    token, key, line = tl.arange(0, BT), tl.arange(0, BD), begin + tl.arange(0, SUB)
    is_key, there = key < keys, line < count
    of_group, of_head = head // group * keys + key, head * keys + key
    t = first + line
    inside, alone = there[:, None] & is_key[None, :], t * heads + head
    own_k, length = _lines(k + t[:, None] * k_stride + of_group[None, :], inside, eps)
    own_k = own_k.to(tl.float32) * length[:, None]
    tl.store(of_k + alone, length, mask=there)
    own_q, length = _lines(q + t[:, None] * q_stride + of_group[None, :], inside, eps)
    length *= scale
    own_q = own_q.to(tl.float32) * length[:, None]
    tl.store(of_q + alone, length, mask=there)
    own = tl.load(sums + t[:, None] * heads * keys + of_head[None, :], mask=inside, other=0.0)
    lines_k = tl.zeros((SUB, BT), dtype=tl.float32)
    lines_q = tl.zeros((SUB, BT), dtype=tl.float32)
    if begin > 0:
        before = (token < begin)[:, None] & is_key[None, :]
        s = first + token
        past_k, lengths = _lines(k + s[:, None] * k_stride + of_group[None, :], before, eps)
        past = tl.load(sums + s[:, None] * heads * keys + of_head[None, :], mask=before, other=0.0)
        mark = tl.load(sums + (first + begin - 1) * heads * keys + of_head, mask=is_key, other=0.0)
        since = tl.exp(tl.where(before, mark[None, :] - past, 0.0)) * lengths[:, None]
        past_k = past_k.to(tl.float32) * since
        since = tl.exp(tl.where(inside, own - mark[None, :], 0.0))
        lines_k = tl.dot(own_k * since, tl.trans(past_k), input_precision=PRECISION)
        lines_q = tl.dot(own_q * since, tl.trans(past_k), input_precision=PRECISION)
    for i in range(tl.minimum(SUB, count - begin)):
        s = first + begin + i
        one_k = tl.load(k + s * k_stride + of_group, mask=is_key, other=0.0).to(tl.float32)
        one_k = one_k / tl.sqrt(tl.sum(one_k * one_k, axis=0) + eps)
        one = tl.load(sums + s * heads * keys + of_head, mask=is_key, other=0.0)
        decayed = one_k[None, :] * tl.exp(tl.minimum(own - one[None, :], 0.0))
        is_one = (token == begin + i)[None, :]
        lines_k = tl.where(is_one, tl.sum(own_k * decayed, axis=1)[:, None], lines_k)
        lines_q = tl.where(is_one, tl.sum(own_q * decayed, axis=1)[:, None], lines_q)
    beta = _beta(beta_in, t * beta_stride + head, there, beta_scale)
    at = alone[:, None] * BT + token[None, :]
    is_before = line[:, None] > token[None, :]
    tl.store(known + at, tl.where(is_before, lines_k * beta[:, None], 0.0), mask=there[:, None])
    lines_q = tl.where(line[:, None] >= token[None, :], lines_q, 0.0)
    tl.store(weights + at, lines_q.to(weights.dtype.element_ty), mask=there[:, None])


@triton.jit
def invert(
    beta_in, known, inverses, query_start, seq_lens, row_block_tokens, rows, beta_stride, heads,
    beta_scale, BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1 beta of a chunk. Shapes: known (A), inverses [T, H, BT]"""
    head = tl.program_id(1)
    first, count = _chunk(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), BLOCK_TOKENS, BT, BR
    )
    if count == 0:
        return
    token = tl.arange(0, BT)
    t, there = first + token, token < count
    at = (t[:, None] * heads + head) * BT + token[None, :]
    a = tl.load(known + at, mask=there[:, None], other=0.0)
    beta = _beta(beta_in, t * beta_stride + head, there, beta_scale)
    inverse = _inverse(a, BT, PRECISION) * beta[None, :]
    tl.store(inverses + at, inverse.to(inverses.dtype.element_ty), mask=there[:, None])


@triton.jit
def _narrow(x, KIND: tl.constexpr):
    """Return numbers of a kind that products are made of; what float16 cannot hold is its most."""
    if KIND == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(KIND)


@triton.jit
def walk(
    q, k, v, inverses, weights, sums, of_k, of_q, state, out, query_start, seq_lens, block_table,
    row_block_tokens, q_stride, k_stride, v_stride, state_stride, table_stride, heads, group, keys,
    values, ROUNDS: tl.constexpr, BY_CHANNEL: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BD: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of the state of a head of a row, from chunk to chunk. Shapes: s [BD, BV]"""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    if not is_chunked(count, block_tokens):
        return
    key, value = tl.arange(0, BD), tl.program_id(2) * BV + tl.arange(0, BV)
    token = tl.arange(0, BT)
    is_key, inside = key < keys, value < values
    both = is_key[:, None] & inside[None, :]
    place = (head * keys + key)[:, None] * values + value[None, :]
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    s = tl.load(state + source * state_stride + place, mask=both & (start > 0), other=0.0)
    s = s.to(tl.float32)
    of_group, of_head = (head // group * keys + key)[None, :], head * keys + key
    of_value = (head * values + value)[None, :]
    last_position = start + count - 1
    numbers = _number(last_position, block_tokens, BT) + 1
    for number in range(_number(start, block_tokens, BT), numbers):
        begin, end = _span(number, start, count, block_tokens, BT)
        t, there = first + begin - start + token, token < end - begin
        here, mine = there[:, None] & is_key[None, :], there[:, None] & inside[None, :]
        lines_k = tl.load(k + t[:, None] * k_stride + of_group, mask=here, other=0.0).to(KIND)
        lines_q = tl.load(q + t[:, None] * q_stride + of_group, mask=here, other=0.0).to(KIND)
        alone, final = t * heads + head, (first + end - 1 - start) * heads
        length_k = tl.load(of_k + alone, mask=there, other=0.0)
        length_q = tl.load(of_q + alone, mask=there, other=0.0)
        known = _narrow(s, KIND)
        if BY_CHANNEL:
            at = t[:, None] * heads * keys + of_head[None, :]
            own = tl.load(sums + at, mask=here, other=0.0)
            last = tl.load(sums + final * keys + of_head, mask=is_key, other=0.0)
            decays, left = tl.exp(own), tl.exp(tl.where(here, last[None, :] - own, 0.0))
            left = (lines_k * left).to(KIND)
            lines_k, lines_q = (lines_k * decays).to(KIND), (lines_q * decays).to(KIND)
            reads_k, reads_q, enters, whole = length_k, length_q, length_k, tl.exp(last)[:, None]
        else:
            own = tl.load(sums + alone, mask=there, other=0.0)
            last = tl.load(sums + final + head)
            left, whole = lines_k, tl.exp(last)
            reads_k, reads_q = length_k * tl.exp(own), length_q * tl.exp(own)
            enters = length_k * tl.exp(tl.where(there, last - own, 0.0))
        read = tl.dot(lines_k, known, input_precision=PRECISION) * reads_k[:, None]
        own_v = tl.load(v + t[:, None] * v_stride + of_value, mask=mine, other=0.0)
        wrong = _narrow(own_v.to(tl.float32) - read, KIND)
        of_pair = alone[:, None] * BT + token[None, :]
        inverse = tl.load(inverses + of_pair, mask=there[:, None], other=0.0)
        entered = tl.dot(inverse, wrong, input_precision=PRECISION)
        weight = tl.load(weights + of_pair, mask=there[:, None], other=0.0)
        made = tl.dot(lines_q, known, input_precision=PRECISION) * reads_q[:, None]
        made += tl.dot(weight, _narrow(entered, KIND), input_precision=PRECISION)
        at_out = (t * heads)[:, None] * values + of_value
        tl.store(out + at_out, made.to(out.dtype.element_ty), mask=mine)
        entered = _narrow(entered * enters[:, None], KIND)
        s = whole * s + tl.dot(tl.trans(left), entered, input_precision=PRECISION)
        if is_kept(end - 1, last_position, block_tokens):
            target = block_of(block_table, table_stride, row, end - 1, block_tokens)
            kept = nearest_bfloat16(s) if ROUNDS else s
            kept = kept.to(state.dtype.element_ty)
            tl.store(state + target * state_stride + place, kept, mask=both)
            s = kept.to(tl.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How long rows are cut: the most tokens of a chunk, the padded sizes of keys and of a
    program's values, what numbers its products are of and how those of float32 are made."""

    tokens: int
    keys: int
    values: int
    dtype: torch.dtype
    precision: str

    @classmethod
    def of(
        cls, q: torch.Tensor, v: torch.Tensor, block_tokens: int, *, by_channel: bool
    ) -> Chunks | None:
        """Return how the rows of a step are cut; None when it has no row that is.

        Shapes: q [T, K, D], v [T, H, V]
        """
        if len(v) < LEAST_TOKENS.value or block_tokens < SUB.value:
            return None
        keys = max(16, triton.next_power_of_2(q.shape[2]))
        is_narrow = q.dtype.itemsize == 2
        most = MOST_TOKENS if is_narrow and not by_channel else MOST_TOKENS // 2
        most = max(SUB.value, min(most, NUMBERS // keys))
        return cls(
            tokens=min(most, triton.next_power_of_2(block_tokens)),
            keys=keys,
            values=min(VALUES, max(16, triton.next_power_of_2(v.shape[2]))),
            dtype=q.dtype if is_narrow and not interprets() else torch.float32,
            precision="ieee" if interprets() else "tf32x3",
        )

    def most(self, tokens: int, rows: int, block_tokens: int, *, has_own_sizes: bool) -> int:
        """Return how many chunks `tokens` of `rows` rows make at most."""
        long_rows = min(rows, tokens // LEAST_TOKENS.value)
        if has_own_sizes:  # a block of 16 tokens is a chunk, a longer one is no denser
            return tokens // SUB.value + 2 * long_rows
        return -(-tokens * triton.cdiv(block_tokens, self.tokens) // block_tokens) + 2 * long_rows


def run_chunks(
    chunks: Chunks,
    out: torch.Tensor,
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
    row_block_tokens: torch.Tensor | None,
    beta_scale: float,
    least_log: float,
) -> None:
    """Compute the rows that go by chunks (see the op). Mutates: out, state"""
    (tokens, heads, values), (key_heads, keys) = v.shape, k.shape[1:]
    group, rows, by_channel = heads // key_heads, len(seq_lens), dt_bias.dim() == 2

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=v.device)

    pairs = tokens, heads, chunks.tokens
    inverses, weights = empty(2, *pairs, dtype=chunks.dtype)
    known, (of_k, of_q) = empty(*pairs), empty(2, tokens, heads)
    most = chunks.most(tokens, rows, block_tokens, has_own_sizes=row_block_tokens is not None)
    steps = query_start, seq_lens, row_block_tokens, rows
    cut = {
        "BLOCK_TOKENS": block_tokens,
        "BT": chunks.tokens,
        "BR": triton.next_power_of_2(rows),
        "num_warps": 4,
    }
    if by_channel:
        sums = empty(tokens, heads, keys)
        sum_channels[most, heads, triton.cdiv(keys, CHANNELS)](
            decay_in, a_log, dt_bias, sums, *steps, decay_in.stride(0), heads, keys, least_log,
            HAS_LEAST=least_log != 0.0, BD=CHANNELS, **cut,
        )  # fmt: skip
        prepare_channels[most, heads, chunks.tokens // SUB.value](
            q, k, beta_in, sums, known, weights, of_k, of_q, *steps, q.stride(0), k.stride(0),
            beta_in.stride(0), heads, group, keys, scale, beta_scale, EPS, BD=chunks.keys,
            PRECISION=chunks.precision, **cut,
        )  # fmt: skip
    else:
        sums = empty(tokens, heads)
        prepare[most, heads](
            q, k, decay_in, beta_in, a_log, dt_bias, known, weights, sums, of_k, of_q, *steps,
            q.stride(0), k.stride(0), decay_in.stride(0), beta_in.stride(0), heads, group, keys,
            scale, beta_scale, least_log, EPS, HAS_LEAST=least_log != 0.0, BD=chunks.keys,
            KIND=KINDS[chunks.dtype], PRECISION=chunks.precision, **cut,
        )  # fmt: skip
    invert[most, heads](
        beta_in, known, inverses, *steps, beta_in.stride(0), heads, beta_scale,
        PRECISION=chunks.precision, **cut,
    )  # fmt: skip
    walk[rows, heads, triton.cdiv(values, chunks.values)](
        q, k, v, inverses, weights, sums, of_k, of_q, state, out, query_start, seq_lens,
        block_table, row_block_tokens, q.stride(0), k.stride(0), v.stride(0), state.stride(0),
        block_table.stride(0), heads, group, keys, values, ROUNDS=state.dtype == torch.bfloat16,
        BY_CHANNEL=by_channel, BLOCK_TOKENS=block_tokens, BD=chunks.keys, BV=chunks.values,
        BT=chunks.tokens, KIND=KINDS[chunks.dtype], PRECISION=chunks.precision, num_warps=4,
    )  # fmt: skip
