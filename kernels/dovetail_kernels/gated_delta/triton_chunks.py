"""gated_delta's long rows in Triton: chunks that are prepared side by side, then walked in order.

The formulas are chunked.py's. `prepare` computes A and the weights of queries and keys of each
chunk and head, `invert` (I + A)^-1 beta, both for all chunks of all rows in parallel. If channels
decay separately, `sum_channels` and `prepare_channels` (a program for each 16 tokens of a chunk)
come first instead. `walk` passes some columns of a head's state from chunk to chunk, in registers.
Products are of 16-bit numbers, their sums and the state float32; (I + A)^-1 uses tf32. float32 goes
token by token (as in ssd): its products would need too many registers. The interpreter computes all
in float32, and takes chunks for float32 too.

The inverse is made by forward substitution within 16 tokens, then by (I + M)^-1 = (I + M^2)(I - M).
M is the product of the blocks' inverses and the blocks below them: M^4 = 0 with four. (The product
form for all 64 tokens would have binomials up to 10^17 if a prompt repeats one token.)

If channels decay separately, exp(l_i - l_j) is not a single number. With r the sums before the 16
tokens of i it is exp(l_i - r) exp(r - l_j) for earlier tokens, and neither factor exceeds 1; within
the 16 it is computed for each pair and channel. Source: Kimi Team, "Kimi Linear", 2025, section 3.

A prompt of 8192, 32 heads of 128 x 128, chunks of 64, by arithmetic:
- dependent steps: 128 chunks, of four products each (k S, the inverse's, the two that end in out,
  plus k^T u); token by token 8192, of two sums over the keys each
- multiply-adds of a chunk and head: `walk` 3 x 64 x 128 x 128 and 2 x 64 x 64 x 128, 4.2 million;
  `prepare` 2 x 64 x 64 x 128 and `invert` 4 x 64^3, 1.0 each. In all 52 GFLOP on matrix units, 34
  of them in `walk` (token by token 30 GFLOP, none on matrix units)
- bytes: q, k, v and out once each, inverses and weights 67 MB, A 67; if channels decay
  separately (chunks of 32) half of those, and 134 for the sums. They are held for one layer's call
- programs of `walk`: 32 heads x 4 of 32 columns, for the 132 processors of an H100
- registers of a thread, of 256: the state 16, a chunk's results 8 each. Shared memory: q, k, v,
  inverse and weights of a chunk 52 KB, three stages of them with S 169 KB on an H100, 97 on an A100
Beyond keys of 128 numbers chunks have 16 tokens and programs 16 columns, for registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dovetail_kernels.gated_delta.reference import EPS
from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.cuts import SUB, chunk_at, is_chunked, most_chunks, number_of, span_of
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.softplus import softplus
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

LEAST_TOKENS = tl.constexpr(32)
"""Of a row in the step, for it to be walked in chunks."""
MOST_TOKENS, WIDE = 64, 128
"""Tokens of a chunk, and the key size beyond which registers only hold the minimum of them."""
KINDS = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
VALUES, CHANNELS = 32, 32
"""Columns of a program that walks, channels of one that sums."""


@triton.jit
def log_of(x, rate, least_log, HAS_LEAST: tl.constexpr):
    """Return the logarithms of decays."""
    if HAS_LEAST:
        return least_log / (1.0 + tl.exp(-rate * x))
    return -rate * softplus(x)


@triton.jit
def _lines(x, mask, eps):
    """Return lines and the factor that makes the sum of their squares 1. Shapes: pointers [n, BD]
    -> [n, BD] as stored, [n]"""
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
    inverted = tl.where(is_own, tl.reshape(wide, (BT, BT)), 0.0)
    if BLOCKS > 1:
        below = tl.dot(inverted, tl.where(is_own, 0.0, a), input_precision=PRECISION)
        inverted -= tl.dot(below, inverted, input_precision=PRECISION)
        if BLOCKS > 2:
            twice = tl.dot(below, below, input_precision=PRECISION)
            inverted += tl.dot(twice, inverted, input_precision=PRECISION)
    return inverted


@triton.jit
def _beta(beta_in, there, beta_scale):
    """Return the tokens' beta, 0 where there are none."""
    raw = tl.load(beta_in, mask=there, other=0.0).to(tl.float32)
    return tl.where(there, beta_scale / (1.0 + tl.exp(-raw)), 0.0)


@triton.jit
def prepare(
    q, k, decay_in, beta_in, a_log, dt_bias, known, weights, sums, of_k, of_q, query_start,
    seq_lens, row_block_tokens, rows, q_stride, k_stride, decay_stride, beta_stride, heads, group,
    keys, scale, beta_scale, least_log, eps, HAS_LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A and the weights of a chunk of a head that decays as one. Shapes: known (A), weights
    [T, H, BT], sums, of_k, of_q [T, H]"""
    head = tl.program_id(1)
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), LEAST_TOKENS,
        BLOCK_TOKENS, BT, BR,
    )  # fmt: skip
    if count == 0:
        return
    token, key = tl.arange(0, BT), tl.arange(0, BD)
    there = token < count
    inside = there[:, None] & (key < keys)[None, :]
    of_group = (head // group * keys + key)[None, :]
    k_at, q_at = k + first * k_stride, q + first * q_stride
    lines_k, length_k = _lines(k_at + token[:, None] * k_stride + of_group, inside, eps)
    lines_q, length_q = _lines(q_at + token[:, None] * q_stride + of_group, inside, eps)
    length_q *= scale
    at = decay_in + first * decay_stride + token * decay_stride + head
    raw = tl.load(at, mask=there, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head))
    logs = log_of(raw + tl.load(dt_bias + head), rate, least_log, HAS_LEAST)
    own = tl.cumsum(tl.where(there, logs, 0.0), axis=0)
    begin, alone = first * heads, token * heads + head
    tl.store(sums + begin + alone, own, mask=there)
    tl.store(of_k + begin + alone, length_k, mask=there)
    tl.store(of_q + begin + alone, length_q, mask=there)
    is_until = token[:, None] >= token[None, :]
    between = tl.exp(tl.where(is_until, own[:, None] - own[None, :], -float("inf")))
    between *= length_k[None, :]
    at = alone[:, None] * BT + token[None, :]
    lines_k, lines_q = lines_k.to(KIND), lines_q.to(KIND)
    weight = tl.dot(lines_q, tl.trans(lines_k), input_precision=PRECISION)
    weight *= between * length_q[:, None]
    weight = weight.to(weights.dtype.element_ty)
    tl.store(weights + begin * BT + at, weight, mask=there[:, None])
    beta = _beta(beta_in + first * beta_stride + token * beta_stride + head, there, beta_scale)
    a = tl.dot(lines_k, tl.trans(lines_k), input_precision=PRECISION)
    a *= between * (length_k * beta)[:, None]
    a = tl.where(token[:, None] > token[None, :], a, 0.0)
    tl.store(known + begin * BT + at, a, mask=there[:, None])


@triton.jit
def sum_channels(
    decay_in, a_log, dt_bias, sums, query_start, seq_lens, row_block_tokens, rows, decay_stride,
    heads, keys, least_log, HAS_LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BD: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """The sums of the logarithms of some channels' decays within a chunk. Shapes: [T, H, D]"""
    head = tl.program_id(1)
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), LEAST_TOKENS,
        BLOCK_TOKENS, BT, BR,
    )  # fmt: skip
    if count == 0:
        return
    token, key = tl.arange(0, BT), tl.program_id(2) * BD + tl.arange(0, BD)
    known, channel = key < keys, head * keys + key
    inside = (token < count)[:, None] & known[None, :]
    bias = tl.load(dt_bias + channel, mask=known, other=0.0)
    at = token[:, None] * decay_stride + channel[None, :]
    raw = tl.load(decay_in + first * decay_stride + at, mask=inside, other=0.0)
    rate = tl.exp(tl.load(a_log + head))
    logs = log_of(raw.to(tl.float32) + bias[None, :], rate, least_log, HAS_LEAST)
    logs = tl.where(inside, logs, 0.0)
    at = (token[:, None] * heads + head) * keys + key[None, :]
    tl.store(sums + first * heads * keys + at, tl.cumsum(logs, axis=0), mask=inside)


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
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), LEAST_TOKENS,
        BLOCK_TOKENS, BT, BR,
    )  # fmt: skip
    if count <= begin:
        return
    token, key, line = tl.arange(0, BT), tl.arange(0, BD), begin + tl.arange(0, SUB)
    is_key, there = key < keys, line < count
    of_group, of_head = head // group * keys + key, head * keys + key
    inside, alone = there[:, None] & is_key[None, :], line * heads + head
    k_at, q_at = k + first * k_stride + of_group, q + first * q_stride + of_group
    sums_at, tokens_before = sums + first * heads * keys + of_head, first * heads
    own_k, length = _lines(k_at[None, :] + line[:, None] * k_stride, inside, eps)
    own_k = own_k.to(tl.float32) * length[:, None]
    tl.store(of_k + tokens_before + alone, length, mask=there)
    own_q, length = _lines(q_at[None, :] + line[:, None] * q_stride, inside, eps)
    length *= scale
    own_q = own_q.to(tl.float32) * length[:, None]
    tl.store(of_q + tokens_before + alone, length, mask=there)
    wide = heads * keys
    own = tl.load(sums_at[None, :] + line[:, None] * wide, mask=inside, other=0.0)
    lines_k = tl.zeros((SUB, BT), dtype=tl.float32)
    lines_q = tl.zeros((SUB, BT), dtype=tl.float32)
    if begin > 0:
        before = (token < begin)[:, None] & is_key[None, :]
        past_k, lengths = _lines(k_at[None, :] + token[:, None] * k_stride, before, eps)
        past = tl.load(sums_at[None, :] + token[:, None] * wide, mask=before, other=0.0)
        mark = tl.load(sums_at + (begin - 1) * wide, mask=is_key, other=0.0)
        since = tl.exp(tl.where(before, mark[None, :] - past, 0.0)) * lengths[:, None]
        past_k = past_k.to(tl.float32) * since
        since = tl.exp(tl.where(inside, own - mark[None, :], 0.0))
        lines_k = tl.dot(own_k * since, tl.trans(past_k), input_precision=PRECISION)
        lines_q = tl.dot(own_q * since, tl.trans(past_k), input_precision=PRECISION)
    for i in range(tl.minimum(SUB, count - begin)):
        one_k = tl.load(k_at + (begin + i) * k_stride, mask=is_key, other=0.0).to(tl.float32)
        one_k = one_k / tl.sqrt(tl.sum(one_k * one_k, axis=0) + eps)
        one = tl.load(sums_at + (begin + i) * wide, mask=is_key, other=0.0)
        decayed = one_k[None, :] * tl.exp(tl.minimum(own - one[None, :], 0.0))
        is_one = (token == begin + i)[None, :]
        lines_k = tl.where(is_one, tl.sum(own_k * decayed, axis=1)[:, None], lines_k)
        lines_q = tl.where(is_one, tl.sum(own_q * decayed, axis=1)[:, None], lines_q)
    beta = _beta(beta_in + first * beta_stride + line * beta_stride + head, there, beta_scale)
    at = alone[:, None] * BT + token[None, :]
    lines_k = tl.where(line[:, None] > token[None, :], lines_k * beta[:, None], 0.0)
    tl.store(known + tokens_before * BT + at, lines_k, mask=there[:, None])
    lines_q = tl.where(line[:, None] >= token[None, :], lines_q, 0.0)
    lines_q = lines_q.to(weights.dtype.element_ty)
    tl.store(weights + tokens_before * BT + at, lines_q, mask=there[:, None])


@triton.jit
def invert(
    beta_in, known, inverses, query_start, seq_lens, row_block_tokens, rows, beta_stride, heads,
    beta_scale, BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1 beta of a chunk. Shapes: known (A), inverses [T, H, BT]"""
    head = tl.program_id(1)
    first, count = chunk_at(
        query_start, seq_lens, row_block_tokens, rows, tl.program_id(0), LEAST_TOKENS,
        BLOCK_TOKENS, BT, BR,
    )  # fmt: skip
    if count == 0:
        return
    token = tl.arange(0, BT)
    there, begin = token < count, first * heads * BT
    at = (token[:, None] * heads + head) * BT + token[None, :]
    a = tl.load(known + begin + at, mask=there[:, None], other=0.0)
    beta = _beta(beta_in + first * beta_stride + token * beta_stride + head, there, beta_scale)
    inverse = (_inverse(a, BT, PRECISION) * beta[None, :]).to(inverses.dtype.element_ty)
    tl.store(inverses + begin + at, inverse, mask=there[:, None])


@triton.jit
def _narrow(x, KIND: tl.constexpr):
    """Return numbers of a kind that products are made of; what float16 cannot hold is its most."""
    if tl.float16 == KIND:
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
    if not is_chunked(count, block_tokens, LEAST_TOKENS):
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
    numbers = number_of(last_position, block_tokens, BT) + 1
    for number in range(number_of(start, block_tokens, BT), numbers):
        begin, end = span_of(number, start, count, block_tokens, BT)
        t, there = first + begin - start, token < end - begin
        here, mine = there[:, None] & is_key[None, :], there[:, None] & inside[None, :]
        at_k, at_q = k + t * k_stride + of_group, q + t * q_stride + of_group
        lines_k = tl.load(at_k + token[:, None] * k_stride, mask=here, other=0.0).to(KIND)
        lines_q = tl.load(at_q + token[:, None] * q_stride, mask=here, other=0.0).to(KIND)
        before, alone = t * heads, token * heads + head
        final = (t + end - begin - 1) * heads
        length_k = tl.load(of_k + before + alone, mask=there, other=0.0)
        length_q = tl.load(of_q + before + alone, mask=there, other=0.0)
        known = _narrow(s, KIND)
        if BY_CHANNEL:
            at = token[:, None] * heads * keys + of_head[None, :]
            own = tl.load(sums + before * keys + at, mask=here, other=0.0)
            last = tl.load(sums + final * keys + of_head, mask=is_key, other=0.0)
            decays, left = tl.exp(own), tl.exp(tl.where(here, last[None, :] - own, 0.0))
            left = (lines_k * left).to(KIND)
            lines_k, lines_q = (lines_k * decays).to(KIND), (lines_q * decays).to(KIND)
            reads_k, reads_q, enters, whole = length_k, length_q, length_k, tl.exp(last)[:, None]
        else:
            own = tl.load(sums + before + alone, mask=there, other=0.0)
            last = tl.load(sums + final + head)
            left, whole = lines_k, tl.exp(last)
            reads_k, reads_q = length_k * tl.exp(own), length_q * tl.exp(own)
            enters = length_k * tl.exp(tl.where(there, last - own, 0.0))
        read = tl.dot(lines_k, known, input_precision=PRECISION) * reads_k[:, None]
        at_v = v + t * v_stride + of_value
        own_v = tl.load(at_v + token[:, None] * v_stride, mask=mine, other=0.0)
        wrong = _narrow(own_v.to(tl.float32) - read, KIND)
        of_pair = alone[:, None] * BT + token[None, :]
        inverse = tl.load(inverses + before * BT + of_pair, mask=there[:, None], other=0.0)
        entered = tl.dot(inverse, wrong, input_precision=PRECISION)
        weight = tl.load(weights + before * BT + of_pair, mask=there[:, None], other=0.0)
        result = tl.dot(lines_q, known, input_precision=PRECISION) * reads_q[:, None]
        result += tl.dot(weight, _narrow(entered, KIND), input_precision=PRECISION)
        at_out = out + before * values + token[:, None] * heads * values + of_value
        tl.store(at_out, result.to(out.dtype.element_ty), mask=mine)
        entered = _narrow(entered * enters[:, None], KIND)
        s = whole * s + tl.dot(tl.trans(left), entered, input_precision=PRECISION)
        if is_kept(end - 1, last_position, block_tokens):
            target = block_of(block_table, table_stride, row, end - 1, block_tokens)
            stored = nearest_bfloat16(s) if ROUNDS else s
            stored = stored.to(state.dtype.element_ty)
            tl.store(state + target * state_stride + place, stored, mask=both)
            s = stored.to(tl.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How long rows are cut: the maximum tokens of a chunk, the padded sizes of keys and of a
    program's values, the dtype of its products, and the precision of float32 ones."""

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
        is_narrow = q.dtype.itemsize == 2
        if len(v) < LEAST_TOKENS.value or block_tokens < SUB.value:
            return None
        if not is_narrow and not interprets():
            return None
        keys = max(16, triton.next_power_of_2(q.shape[2]))
        max_tokens = MOST_TOKENS if is_narrow and not by_channel else MOST_TOKENS // 2
        is_wide = keys > WIDE
        max_tokens = SUB.value if is_wide else max_tokens
        return cls(
            tokens=min(max_tokens, triton.next_power_of_2(block_tokens)),
            keys=keys,
            values=16 if is_wide else min(VALUES, max(16, triton.next_power_of_2(v.shape[2]))),
            dtype=q.dtype if is_narrow and not interprets() else torch.float32,
            precision="ieee" if interprets() else "tf32",
        )


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
    max_cuts = most_chunks(
        tokens, rows, block_tokens, chunks.tokens, least_tokens=LEAST_TOKENS.value,
        has_own_sizes=row_block_tokens is not None,
    )  # fmt: skip
    steps = query_start, seq_lens, row_block_tokens, rows
    cut = {
        "BLOCK_TOKENS": block_tokens,
        "BT": chunks.tokens,
        "BR": triton.next_power_of_2(rows),
        "num_warps": 8,
    }
    if by_channel:
        sums = empty(tokens, heads, keys)
        sum_channels[max_cuts, heads, triton.cdiv(keys, CHANNELS)](
            decay_in, a_log, dt_bias, sums, *steps, decay_in.stride(0), heads, keys, least_log,
            HAS_LEAST=least_log != 0.0, BD=CHANNELS, **cut,
        )  # fmt: skip
        prepare_channels[max_cuts, heads, chunks.tokens // SUB.value](
            q, k, beta_in, sums, known, weights, of_k, of_q, *steps, q.stride(0), k.stride(0),
            beta_in.stride(0), heads, group, keys, scale, beta_scale, EPS, BD=chunks.keys,
            PRECISION=chunks.precision, **cut,
        )  # fmt: skip
    else:
        sums = empty(tokens, heads)
        prepare[max_cuts, heads](
            q, k, decay_in, beta_in, a_log, dt_bias, known, weights, sums, of_k, of_q, *steps,
            q.stride(0), k.stride(0), decay_in.stride(0), beta_in.stride(0), heads, group, keys,
            scale, beta_scale, least_log, EPS, HAS_LEAST=least_log != 0.0, BD=chunks.keys,
            KIND=KINDS[chunks.dtype], PRECISION=chunks.precision, **cut,
        )  # fmt: skip
    invert[max_cuts, heads](
        beta_in, known, inverses, *steps, beta_in.stride(0), heads, beta_scale,
        PRECISION=chunks.precision, **cut,
    )  # fmt: skip
    walk[rows, heads, triton.cdiv(values, chunks.values)](
        q, k, v, inverses, weights, sums, of_k, of_q, state, out, query_start, seq_lens,
        block_table, row_block_tokens, q.stride(0), k.stride(0), v.stride(0), state.stride(0),
        block_table.stride(0), heads, group, keys, values, ROUNDS=state.dtype == torch.bfloat16,
        BY_CHANNEL=by_channel, BLOCK_TOKENS=block_tokens, BD=chunks.keys, BV=chunks.values,
        BT=chunks.tokens, KIND=KINDS[chunks.dtype], PRECISION=chunks.precision, num_warps=8,
    )  # fmt: skip
