"""The place of a row's states in Triton (see dovetail_kernels.states), one row a program.

Knows no recurrence; needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_tokens(query_start, seq_lens, row):
    """Return a row's first token in the step, how many it has there, and the first one's
    position."""
    first = tl.load(query_start + row).to(tl.int64)
    count = tl.load(query_start + row + 1).to(tl.int64) - first
    return first, count, tl.load(seq_lens + row).to(tl.int64) - count


@triton.jit
def tokens_of(row_block_tokens, row, BLOCK_TOKENS: tl.constexpr):
    """Return how many tokens the row's blocks hold."""
    if row_block_tokens is None:  # known when it is compiled: only one branch is
        tokens = BLOCK_TOKENS
    else:
        tokens = tl.load(row_block_tokens + row).to(tl.int64)
    return tokens


@triton.jit
def block_of(block_table, table_stride, row, position, block_tokens):
    """Return the block of a row's position; of position -1, that of position 0."""
    at = tl.maximum(position, 0) // block_tokens
    return tl.load(block_table + row * table_stride + at).to(tl.int64)


@triton.jit
def is_kept(position, last, block_tokens):
    """Return whether the state after this position is stored: it ends its block or the row."""
    return ((position + 1) % block_tokens == 0) | (position == last)
