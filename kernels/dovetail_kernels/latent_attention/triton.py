"""latent_attention in Triton: a program holds some heads of a query, and walks over the latents.

A row of one token is walked in up to SPLITS splits, whose length follows from the row's own number
of latents, and `_join` adds them up; queries of longer rows are walked whole. So a row's numbers
depend only on its own tokens. The host reads only sizes and the longest row.

Floor: a decode reads each latent once for every HEADS heads; the L2 cache serves all but the first
read; the operations are 2 H S (2 L + R).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets

LOG2_E = 1.4426950408889634
HEADS = 16
"""Heads that a program holds: what tensor cores multiply at least."""
KEYS = 32
SPLITS = 8
LEAST_SPLIT = 256
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _row_of(token, query_start, num_rows):
    """Return the last row that begins at a token or before it."""
    low, high = token * 0, num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        begins = tl.load(query_start + middle) <= token
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle - 1)
    return low


@triton.jit
def _split_tokens(count, LEAST: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr):
    return tl.maximum(LEAST, tl.cdiv(tl.cdiv(count, SPLITS), KEYS) * KEYS)


@triton.jit
def _walk(
    q, q_stride, cache, block_stride, table, table_stride, query_start, seq_lens, out, picks, sinks,
    sums, num_rows, num_heads, scale,
    BLOCK_TOKENS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
    TURNED_WIDE: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    LEAST: tl.constexpr, IS_SPLIT: tl.constexpr, DTYPE: tl.constexpr, PICKED: tl.constexpr,
    HAS_SINKS: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """With IS_SPLIT of rows of one token, by row and split, into sums [R, SPLITS, H, SIZE + 2];
    else of all others, by token."""
    first = tl.program_id(0)
    row = first if IS_SPLIT else _row_of(first, query_start, num_rows)
    begin, end = tl.load(query_start + row), tl.load(query_start + row + 1)
    is_decode = end - begin == 1
    if is_decode != IS_SPLIT:
        return
    token = (begin if IS_SPLIT else first).to(tl.int64)
    seen = tl.load(seq_lens + row) - (end - token.to(tl.int32)) + 1
    if PICKED:  # a query sees its picks as if they were all positions
        seen = tl.minimum(seen, PICKED)
    start, stop = seen * 0, seen
    split = tl.program_id(2)
    if IS_SPLIT:
        length = _split_tokens(seen, LEAST, SPLITS, KEYS)
        start = split * length
        stop = tl.minimum(start + length, seen)
        if start >= stop:
            return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at, turned, step = tl.arange(0, WIDE), tl.arange(0, TURNED_WIDE), tl.arange(0, KEYS)
    is_head = (head < num_heads)[:, None]
    from_q = q + token * q_stride + head[:, None] * (SIZE + TURNED)
    own = tl.load(from_q + at[None, :], mask=is_head & (at < SIZE)[None, :], other=0.0)
    place = tl.load(
        from_q + SIZE + turned[None, :], mask=is_head & (turned < TURNED)[None, :], other=0.0
    )
    acc = tl.zeros((HEADS, WIDE), dtype=tl.float32)
    total = tl.zeros((HEADS,), dtype=tl.float32)
    maximum = tl.full((HEADS,), float("-inf"), dtype=tl.float32)
    for base in range(start, stop, KEYS):
        key = base + step
        is_there = key < stop
        if PICKED:
            key = tl.load(picks + token * PICKED + key, mask=is_there, other=0)
        block = tl.load(table + row * table_stride + key // BLOCK_TOKENS, mask=is_there, other=0)
        where = block.to(tl.int64) * block_stride + (key % BLOCK_TOKENS) * (SIZE + TURNED)
        latent = tl.load(
            cache + where[:, None] + at[None, :],
            mask=is_there[:, None] & (at < SIZE)[None, :], other=0.0,
        ).to(DTYPE)  # fmt: skip
        other = tl.load(
            cache + where[:, None] + SIZE + turned[None, :],
            mask=is_there[:, None] & (turned < TURNED)[None, :], other=0.0,
        ).to(DTYPE)  # fmt: skip
        scores = tl.dot(own.to(DTYPE), tl.trans(latent), input_precision="ieee")
        scores = tl.dot(place.to(DTYPE), tl.trans(other), scores, input_precision="ieee")
        scores = tl.where(is_there[None, :], scores, float("-inf"))
        new_most = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2((scores - new_most[:, None]) * scale)
        fade = tl.exp2((maximum - new_most) * scale)
        total = total * fade + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(DTYPE), latent, acc * fade[:, None], input_precision="ieee")
        maximum = new_most
    inside = is_head & (at < SIZE)[None, :]
    if IS_SPLIT:
        to = sums + ((row.to(tl.int64) * SPLITS + split) * num_heads + head) * (SIZE + 2)
        tl.store(to[:, None] + at[None, :], acc, mask=inside)
        tl.store(to + SIZE, maximum * scale, mask=head < num_heads)
        tl.store(to + SIZE + 1, total, mask=head < num_heads)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=head < num_heads, other=0.0) * LOG2_E
            total += tl.exp2(sink - maximum * scale)
        result = acc / tl.where(total > 0, total, 1.0)[:, None]  # a row of length 0 gets zeros
        to = out + (token * num_heads + head[:, None]) * SIZE + at[None, :]
        tl.store(to, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _join(
    sums, query_start, seq_lens, out, sinks, num_heads,
    SIZE: tl.constexpr, WIDE: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    LEAST: tl.constexpr, PICKED: tl.constexpr, HAS_SINKS: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """Add up the splits of a head of a row of one token."""
    row, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(query_start + row), tl.load(query_start + row + 1)
    if end - begin != 1:
        return
    seen = tl.load(seq_lens + row)
    if PICKED:
        seen = tl.minimum(seen, PICKED)
    count = tl.cdiv(seen, _split_tokens(seen, LEAST, SPLITS, KEYS))
    at = tl.arange(0, WIDE)
    acc = tl.zeros((WIDE,), dtype=tl.float32)
    total, maximum = 0.0, float("-inf")
    for split in range(count):
        own = sums + ((row.to(tl.int64) * SPLITS + split) * num_heads + head) * (SIZE + 2)
        level = tl.load(own + SIZE)
        peak = tl.maximum(maximum, level)
        fade, fresh = tl.exp2(maximum - peak), tl.exp2(level - peak)
        acc = acc * fade + tl.load(own + at, mask=at < SIZE, other=0.0) * fresh
        total = total * fade + tl.load(own + SIZE + 1) * fresh
        maximum = peak
    if HAS_SINKS:
        total += tl.exp2(tl.load(sinks + head) * LOG2_E - maximum)
    to = out + (begin.to(tl.int64) * num_heads + head) * SIZE + at
    tl.store(to, (acc / tl.where(total > 0, total, 1.0)).to(out.dtype.element_ty), mask=at < SIZE)


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_size: int,
    *,
    may_round: bool = False,
    picks: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    has_decodes: bool = True,
    has_prefills: bool = True,
) -> torch.Tensor:
    """Return the attended latents (see the op). `has_decodes` and `has_prefills`: whether a row may
    have one token, or more."""
    tokens, heads, width = q.shape
    rows = len(seq_lens)
    out = torch.empty(tokens, heads, latent_size, dtype=q.dtype, device=q.device)
    sizes = {
        "SIZE": latent_size,
        "WIDE": max(16, triton.next_power_of_2(latent_size)),
        "KEYS": KEYS,
        "SPLITS": SPLITS,
        "LEAST": LEAST_SPLIT,
        "PICKED": 0 if picks is None else picks.shape[1],
        "HAS_SINKS": sinks is not None,
        "LOG2_E": LOG2_E,
    }
    turned = width - latent_size
    rounds = may_round and cache.dtype is torch.bfloat16
    walk = {
        **sizes,
        "BLOCK_TOKENS": cache.shape[1],
        "TURNED": turned,
        "TURNED_WIDE": max(16, triton.next_power_of_2(turned)),
        "HEADS": HEADS,
        "DTYPE": tl.float32 if interprets() else DTYPES[cache.dtype if rounds else q.dtype],
    }
    own_sinks = out if sinks is None else sinks
    given = (
        q, q.stride(0), cache, cache.stride(0), block_table, block_table.stride(0), query_start,
        seq_lens, out, out if picks is None else picks, own_sinks,
    )  # fmt: skip
    blocks = triton.cdiv(heads, HEADS)
    if has_prefills:
        _walk[(tokens, blocks)](
            *given, out, rows, heads, scale * LOG2_E, **walk, IS_SPLIT=False, num_warps=8
        )
    if has_decodes:
        shape = (rows, SPLITS, heads, latent_size + 2)
        sums = torch.empty(shape, dtype=torch.float32, device=q.device)
        _walk[(rows, blocks, SPLITS)](
            *given, sums, rows, heads, scale * LOG2_E, **walk, IS_SPLIT=True, num_warps=8
        )
        _join[(rows, heads)](sums, query_start, seq_lens, out, own_sinks, heads, **sizes)
    return out


def run(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_size: int,
    may_round: bool = False,
    picks: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended latents (see the op)."""
    rows = (block_table, query_start, seq_lens)
    return attend(
        q, cache, *rows, scale, latent_size, may_round=may_round, picks=picks, sinks=sinks
    )
