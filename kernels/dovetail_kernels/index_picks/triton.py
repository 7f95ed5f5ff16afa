"""index_picks in Triton: a program scores some keys for one query; torch picks the highest.

A score and its position become one integer of the same order, all different, so that any search
finds the same highest K. The host reads nothing but sizes.

Floor: the multiply-adds, 2 H D S of a query that sees S keys; for a single query, the keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets
from dovetail_kernels.latent_attention.triton import DTYPES, _row_of

KEYS = 64
HEADS = 16
"""Heads that meet some keys at a time: what tensor cores multiply at least."""
MAX_SCORES = 1 << 26
"""How many scores of several queries are in memory at a time."""


@triton.jit
def _score(
    q, q_stride, weights, weights_stride, cache, block_stride, table, table_stride, query_start,
    seq_lens, orders, num_rows, num_heads, max_tokens, first_token,
    BLOCK_TOKENS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr,
    KEYS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Fill orders [T, max_tokens] int64 of the tokens from `first_token` on; -1, below all others,
    marks unseen keys."""
    token = first_token + tl.program_id(0)
    row = _row_of(token, query_start, num_rows)
    seen = tl.load(seq_lens + row) - (tl.load(query_start + row + 1) - token) + 1
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    is_seen = key < seen
    to = orders + tl.program_id(0).to(tl.int64) * max_tokens + key
    at, step = tl.arange(0, WIDE), tl.arange(0, HEADS)
    block = tl.load(table + row * table_stride + key // BLOCK_TOKENS, mask=is_seen, other=0)
    where = block.to(tl.int64) * block_stride + (key % BLOCK_TOKENS) * SIZE
    inside = (at < SIZE)[None, :]
    keys = tl.load(
        cache + where[:, None] + at[None, :], mask=is_seen[:, None] & inside, other=0.0
    ).to(DTYPE)  # fmt: skip
    total = tl.zeros((KEYS,), dtype=tl.float32)
    for base in range(0, num_heads, HEADS):
        head = base + step
        is_head = head < num_heads
        own = tl.load(
            q + token.to(tl.int64) * q_stride + head[:, None] * SIZE + at[None, :],
            mask=is_head[:, None] & inside, other=0.0,
        ).to(DTYPE)  # fmt: skip
        by = tl.load(weights + token.to(tl.int64) * weights_stride + head, mask=is_head, other=0.0)
        products = tl.dot(keys, tl.trans(own), input_precision="ieee")
        total += tl.sum(tl.maximum(products, 0.0) * by[None, :], axis=1)
    bits = (total + 0.0).to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, ~bits & 0x7FFFFFFF, bits.to(tl.int64) + 0x80000000)
    ranked = order * 0x80000000 + (0x7FFFFFFF - key)
    tl.store(to, tl.where(is_seen, ranked, -1), mask=key < max_tokens)


def index_picks(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    num_picked: int,
    *,
    max_tokens: int,
) -> torch.Tensor:
    """Return the positions that each query picks (see the op); no row has more than `max_tokens`
    tokens."""
    tokens, heads, size = q.shape
    picks = torch.empty(tokens, num_picked, dtype=torch.int32, device=q.device)
    max_queries = max(1, min(tokens, MAX_SCORES // max(1, max_tokens)))
    memory = torch.empty(max_queries, max_tokens, dtype=torch.int64, device=q.device)
    for first in range(0, tokens, max_queries):
        part = slice(first, min(first + max_queries, tokens))
        orders = memory[: part.stop - first]
        _score[(part.stop - first, triton.cdiv(max_tokens, KEYS))](
            q, q.stride(0), weights, weights.stride(0), cache, cache.stride(0),
            block_table, block_table.stride(0), query_start, seq_lens, orders, len(seq_lens),
            heads, max_tokens, first,
            BLOCK_TOKENS=cache.shape[1], SIZE=size, WIDE=max(16, triton.next_power_of_2(size)),
            HEADS=HEADS, KEYS=KEYS, DTYPE=tl.float32 if interprets() else DTYPES[q.dtype],
        )  # fmt: skip
        picks[part] = _highest(orders, num_picked)
    return picks


def _highest(orders: torch.Tensor, num_picked: int) -> torch.Tensor:
    """Return the positions of the highest, in ascending order, then -1.
    Shapes: orders [T, S] int64 -> [T, num_picked] int32"""
    count = orders.shape[1]
    best, at = orders.topk(min(num_picked, count), dim=1, sorted=False)
    at = torch.where(best < 0, count, at).sort(dim=1).values
    at = torch.where(at == count, -1, at)
    return torch.nn.functional.pad(at, (0, num_picked - at.shape[1]), value=-1).int()


def run(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    num_picked: int,
) -> torch.Tensor:
    """Return the positions that each query picks (see the op)."""
    max_tokens = block_table.shape[1] * cache.shape[1]
    rows = (block_table, query_start, seq_lens)
    return index_picks(q, weights, cache, *rows, num_picked, max_tokens=max_tokens)
