"""The chunks of long rows in Triton: their order, and which program has which.

A chunk's place depends only on positions: each block is cut from its beginning into BT tokens. So a
row's chunks do not depend on the other rows, and steps that are cut at ends of chunks have the same
ones. Which program has which chunk every program finds by the sums of the rows' chunks: no table,
nothing that the host waits for. Knows no recurrence; needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from dovetail_kernels.gpu.states import row_tokens, tokens_of

SUB = tl.constexpr(16)
"""Tokens that a chunk may have at least, and a block whose row is walked so."""


@triton.jit
def is_chunked(count, block_tokens, LEAST: tl.constexpr):
    """Return whether a row with `count` tokens in the step is walked in chunks."""
    return (count >= LEAST) & (block_tokens >= SUB)


@triton.jit
def number_of(position, block_tokens, BT: tl.constexpr):
    """Return which of the chunks of a row, counted from position 0, has a position."""
    of_block = (block_tokens + BT - 1) // BT
    return position // block_tokens * of_block + position % block_tokens // BT


@triton.jit
def span_of(number, start, count, block_tokens, BT: tl.constexpr):
    """Return the positions begin .. end - 1 of a row's chunk that are in the step."""
    of_block = (block_tokens + BT - 1) // BT
    block = number // of_block
    begin = block * block_tokens + number % of_block * BT
    end = tl.minimum(begin + BT, (block + 1) * block_tokens)
    return tl.maximum(begin, start), tl.minimum(end, start + count)


@triton.jit
def _chunks_of_rows(
    query_start, seq_lens, row_block_tokens, rows, LEAST: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Return how many chunks each row has in the step. Shapes: [BR]"""
    row = tl.arange(0, BR)
    known = row < rows
    first = tl.load(query_start + row, mask=known, other=0)
    count = tl.load(query_start + row + 1, mask=known, other=0) - first
    start = tl.load(seq_lens + row, mask=known, other=0) - count
    if row_block_tokens is None:
        size = row * 0 + BLOCK_TOKENS
    else:
        size = tl.load(row_block_tokens + row, mask=known, other=1)
    last = number_of(start + count - 1, size, BT)
    has_chunks = known & is_chunked(count, size, LEAST)
    return tl.where(has_chunks, last - number_of(start, size, BT) + 1, 0)


@triton.jit
def chunks_before(
    query_start, seq_lens, row_block_tokens, rows, row, LEAST: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Return how many chunks of the step belong to earlier rows."""
    chunks = _chunks_of_rows(
        query_start, seq_lens, row_block_tokens, rows, LEAST, BLOCK_TOKENS, BT, BR
    )
    return tl.sum(tl.where(tl.arange(0, BR) < row, chunks, 0), axis=0)


@triton.jit
def chunk_at(
    query_start, seq_lens, row_block_tokens, rows, index, LEAST: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Return the first token of the step's chunk `index` and how many it has: 0 beyond the last."""
    row = tl.arange(0, BR)
    chunks = _chunks_of_rows(
        query_start, seq_lens, row_block_tokens, rows, LEAST, BLOCK_TOKENS, BT, BR
    )
    ends = tl.cumsum(chunks, axis=0)
    own = tl.minimum(tl.sum((ends <= index).to(tl.int32), axis=0), rows - 1)
    before = tl.sum(tl.where(row == own, ends - chunks, 0), axis=0)
    is_one = index < tl.sum(chunks, axis=0)
    first, count, start = row_tokens(query_start, seq_lens, own)
    block_tokens = tokens_of(row_block_tokens, own, BLOCK_TOKENS)
    number = number_of(start, block_tokens, BT) + index - before
    begin, end = span_of(number, start, count, block_tokens, BT)
    return first + begin - start, tl.where(is_one, end - begin, 0)


def most_chunks(
    tokens: int,
    rows: int,
    block_tokens: int,
    chunk_tokens: int,
    *,
    least_tokens: int,
    has_own_sizes: bool,
) -> int:
    """Return the maximum number of chunks of a step; only rows of `least_tokens` and more have any.

    A row of n tokens has at most n c / P + 3, with c chunks to a block of P: its ends may be cut,
    and its whole part may begin with the short chunk of a block. c / P is below 1 / 8.
    """
    own = 3 * min(rows, tokens // least_tokens)
    if has_own_sizes:
        return triton.cdiv(tokens, SUB.value // 2) + own
    return triton.cdiv(tokens * triton.cdiv(block_tokens, chunk_tokens), block_tokens) + own


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCuts:
    """How the long rows of a step are cut: the most chunks that it has, and the constants with
    which kernels are compiled."""

    most: int
    constants: dict[str, int]

    @classmethod
    def of(
        cls,
        tokens: int,
        rows: int,
        block_tokens: int,
        *,
        chunk_tokens: int,
        least_tokens: int,
        has_own_sizes: bool,
    ) -> RowCuts | None:
        """Return how a step is cut into chunks of at most `chunk_tokens`; None when no row of it
        is: it has fewer than `least_tokens`, or no more tokens than rows, or short blocks."""
        if tokens < max(least_tokens, rows + 1) or block_tokens < SUB.value:
            return None
        some = min(chunk_tokens, triton.next_power_of_2(block_tokens))
        max_cuts = most_chunks(
            tokens, rows, block_tokens, some, least_tokens=least_tokens,
            has_own_sizes=has_own_sizes,
        )  # fmt: skip
        constants = {
            "BT": some,
            "BR": triton.next_power_of_2(rows),
            "LEAST": least_tokens,
            "BLOCK_TOKENS": block_tokens,
        }
        return cls(most=max_cuts, constants=constants)
