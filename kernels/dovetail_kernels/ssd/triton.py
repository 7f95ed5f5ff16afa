"""ssd in Triton: one program per some lines of the state of one head of one row.

If every row computes one token, and for float32, tokens go one after the other with the state in
registers: it is read once and written once. In other steps of 16-bit numbers a program walks chunks
by the products of chunked.py, the state in registers from a row's first token of the step to its
last; a chunk ends with its block.

Floor: of a decode the states, read and written once, at the device's bandwidth; of a prompt the
chunks' products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.softplus import softplus
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

NUMBERS = 2048
"""Numbers of state of a program that goes token by token."""
CHUNK_TOKENS, CHUNK_NUMBERS = 32, 4096
"""Tokens of a chunk, and with b or c of all of them numbers."""
LINES = 32
"""Of a program that walks chunks."""


@triton.jit
def _delta(dt, at, mask, bias, low, high, HAS_DT: tl.constexpr):
    """Return delta at these positions of dt, 0 outside `mask`."""
    if HAS_DT:
        raw = tl.load(dt + at, mask=mask, other=0.0).to(tl.float32) + bias
        delta = tl.minimum(tl.maximum(softplus(raw), low), high)
    else:
        delta = at.to(tl.float32) * 0.0 + 1.0
    return tl.where(mask, delta, 0.0)


@triton.jit
def token_by_token(
    x, dt, a, b, c, d, dt_bias, state, out, query_start, seq_lens, block_table,
    row_block_tokens, x_stride, dt_stride,
    b_stride, c_stride, state_stride, table_stride, heads, group, lines, size, low, high,
    HAS_DT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SKIP: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BP: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """The state goes from token to token. Shapes: h [BP, BS]"""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, number = tl.program_id(2) * BP + tl.arange(0, BP), tl.arange(0, BS)
    inside, known = line < lines, number < size
    both = inside[:, None] & known[None, :]
    place = (head * lines + line)[:, None] * size + number[None, :]
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = (start > 0) & (count > 0)
    h = tl.load(state + source * state_stride + place, mask=both & has_past, other=0.0)
    h = h.to(tl.float32)
    rate = tl.load(a + head)
    bias = tl.load(dt_bias + head) if HAS_BIAS else 0.0
    skip = tl.load(d + head) if HAS_SKIP else 0.0
    of_group = head // group * size + number
    for i in range(count):
        t = first + i
        delta = _delta(dt, t * dt_stride + head, t >= 0, bias, low, high, HAS_DT)
        values = tl.load(x + t * x_stride + head * lines + line, mask=inside, other=0.0)
        values = values.to(tl.float32)
        driving = tl.load(b + t * b_stride + of_group, mask=known, other=0.0).to(tl.float32)
        reading = tl.load(c + t * c_stride + of_group, mask=known, other=0.0).to(tl.float32)
        h = tl.exp(delta * rate) * h + (delta * values)[:, None] * driving[None, :]
        result = tl.sum(h * reading[None, :], axis=1) + skip * values
        at = out + (t * heads + head) * lines + line
        tl.store(at, result.to(out.dtype.element_ty), mask=inside)
        if ROUNDS:
            h = nearest_bfloat16(h)
        stored = h.to(state.dtype.element_ty)
        h = stored.to(tl.float32)
        if is_kept(start + i, start + count - 1, block_tokens):
            target = block_of(block_table, table_stride, row, start + i, block_tokens)
            tl.store(state + target * state_stride + place, stored, mask=both)


@triton.jit
def by_chunks(
    x, dt, a, b, c, d, dt_bias, state, out, query_start, seq_lens, block_table,
    row_block_tokens, x_stride, dt_stride,
    b_stride, c_stride, state_stride, table_stride, heads, group, lines, size, low, high,
    HAS_DT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SKIP: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BP: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The state goes from chunk to chunk. Shapes: h [BS, BP]"""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, number = tl.program_id(2) * BP + tl.arange(0, BP), tl.arange(0, BS)
    token = tl.arange(0, BT)
    inside, known = line < lines, number < size
    both = known[:, None] & inside[None, :]
    place = (head * lines + line)[None, :] * size + number[:, None]
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = (start > 0) & (count > 0)
    h = tl.load(state + source * state_stride + place, mask=both & has_past, other=0.0)
    h = h.to(tl.float32)
    rate = tl.load(a + head)
    bias = tl.load(dt_bias + head) if HAS_BIAS else 0.0
    skip = tl.load(d + head) if HAS_SKIP else 0.0
    of_group = head // group * size + number
    done = count * 0
    while done < count:
        position = start + done
        some = tl.minimum(block_tokens - position % block_tokens, count - done)
        some = tl.minimum(some, BT)
        t, there = first + done + token, token < some
        delta = _delta(dt, t * dt_stride + head, there, bias, low, high, HAS_DT)
        sums = tl.cumsum(delta * rate, axis=0)
        last = tl.sum(delta * rate, axis=0)
        here = there[:, None] & inside[None, :]
        values = tl.load(
            x + t[:, None] * x_stride + (head * lines + line)[None, :], mask=here, other=0.0
        ).to(tl.float32)
        some_known = there[:, None] & known[None, :]
        driving = tl.load(
            b + t[:, None] * b_stride + of_group[None, :], mask=some_known, other=0.0
        ).to(tl.float32)
        reading = tl.load(
            c + t[:, None] * c_stride + of_group[None, :], mask=some_known, other=0.0
        ).to(tl.float32)
        is_before = token[:, None] >= token[None, :]
        between = tl.exp(tl.where(is_before, sums[:, None] - sums[None, :], -float("inf")))
        weights = tl.dot(reading, tl.trans(driving), input_precision=PRECISION)
        weights = weights * between * delta[None, :]
        result = tl.dot(weights, values, input_precision=PRECISION)
        result += tl.exp(sums)[:, None] * tl.dot(reading, h, input_precision=PRECISION)
        result += skip * values
        at = out + (t * heads + head)[:, None] * lines + line[None, :]
        tl.store(at, result.to(out.dtype.element_ty), mask=here)
        left = (tl.exp(last - sums) * delta)[:, None] * values
        h = tl.exp(last) * h + tl.dot(tl.trans(driving), left, input_precision=PRECISION)
        done += some
        if is_kept(start + done - 1, start + count - 1, block_tokens):
            target = block_of(block_table, table_stride, row, start + done - 1, block_tokens)
            stored = nearest_bfloat16(h) if ROUNDS else h
            tl.store(
                state + target * state_stride + place, stored.to(state.dtype.element_ty), mask=both
            )


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
    """Return out = h c + d x (see the op). Tokens may be strided, heads and groups are contiguous.

    Shapes: x [T, H, P], dt [T, H], a, d, dt_bias [H], b and c [T, G, S], state [N, H, P, S] ->
    [T, H, P]
    Mutates: state
    """
    (tokens, heads, lines), (groups, size) = x.shape, b.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    goes_singly = tokens <= len(seq_lens) or x.dtype == torch.float32
    numbers = max(1 if goes_singly else 16, triton.next_power_of_2(size))
    max_lines = max(1, NUMBERS // numbers) if goes_singly else LINES
    longest = triton.next_power_of_2(block_tokens)
    some = min(max_lines, max(1 if goes_singly else 16, triton.next_power_of_2(lines)))
    chunks = {
        "BT": max(16, min(CHUNK_TOKENS, CHUNK_NUMBERS // numbers, longest)),
        "PRECISION": "ieee" if interprets() else "tf32",
    }
    kernel = token_by_token if goes_singly else by_chunks
    kernel[(len(seq_lens), heads, triton.cdiv(lines, some))](
        x, dt, a, b, c, d, dt_bias, state, out, query_start, seq_lens, block_table,
        row_block_tokens, x.stride(0),
        0 if dt is None else dt.stride(0), b.stride(0), c.stride(0), state.stride(0),
        block_table.stride(0), heads, heads // groups, lines, size, *dt_limit,
        HAS_DT=dt is not None, HAS_BIAS=dt_bias is not None, HAS_SKIP=d is not None,
        ROUNDS=state.dtype == torch.bfloat16, BLOCK_TOKENS=block_tokens, BP=some, BS=numbers,
        num_warps=4 if goes_singly or numbers < 128 else 8, **({} if goes_singly else chunks),
    )  # fmt: skip
    return out
