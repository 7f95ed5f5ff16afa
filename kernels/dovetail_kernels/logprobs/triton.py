"""logprobs in Triton: two reads of the logits by many programs, then one program a row.

`scan` leaves the largest logit of every block of tokens and of every piece, `weigh` the sum of
weights and the number of larger logits of every piece. `tell` adds them up and picks the likeliest
tokens one after the other: it reads the block with the largest remaining logit again, takes the
token, and replaces it by the block's next one. So nothing is sorted or widened; beyond its two
reads, a row costs a block and a few hundred comparisons for each reported token.

Floor: a read of the rows' logits, the tokens reported written. It reads them twice; the second read
hits the device's cache if the rows' logits fit into it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.logprobs.reference import HEAD
from dovetail_kernels.sample.tiles import weight

PIECE = 4096
"""Tokens that one program scans or weighs."""
MAX_BLOCKS = 4096
"""Blocks of a row whose largest logits one program can hold."""
LEAST_BLOCK = 128
LOWEST = tl.constexpr(-(1 << 31))
"""The key of no logit; that of -inf is larger."""
NAN = tl.constexpr((1 << 31) - 1)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
WORD = tl.constexpr(1 << 32)
FRONT = tl.constexpr(HEAD)


@triton.jit
def _keys(logits, stride, row, token, vocab):
    """Return whole numbers that order logits; NaN is above all, missing tokens below."""
    inside = token < vocab
    value = tl.load(logits + row * stride + token, mask=inside, other=0.0).to(tl.float32) + 0.0
    bits = value.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & MAGNITUDE)
    return tl.where(inside, tl.where(value == value, key, NAN), LOWEST)


@triton.jit
def _value(key):
    """Return the logit of a key."""
    return (key ^ ((key >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit
def _row_of(rows, which):
    row = which
    if rows is not None:
        row = tl.load(rows + which)
    return row.to(tl.int64)


@triton.jit
def _scan(
    logits, stride, vocab, rows, maxima, bests, num_blocks, num_pieces,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = _row_of(rows, which)
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    found = tl.max(_keys(logits, stride, row, token, vocab), axis=1)
    tl.store(maxima + which * num_blocks + block, found, mask=block < num_blocks)
    tl.store(bests + which * num_pieces + piece, tl.max(found, axis=0))


@triton.jit
def _best(bests, which, num_pieces, PIECES: tl.constexpr):
    at = tl.arange(0, PIECES)
    own = tl.load(bests + which * num_pieces + at, mask=at < num_pieces, other=LOWEST)
    return tl.max(own, axis=0)


@triton.jit
def _weigh(
    logits, stride, vocab, rows, tokens, bests, sums, counts, num_pieces,
    PIECES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    which, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = _row_of(rows, which)
    best = _value(_best(bests, which, num_pieces, PIECES))
    chosen = tl.load(logits + row * stride + tl.load(tokens + which)).to(tl.float32)
    token = piece * PIECE + tl.arange(0, PIECE)
    value = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
    value = value.to(tl.float32)
    sum_at = which * num_pieces + piece
    tl.store(sums + sum_at, tl.sum(tl.where(token < vocab, weight(value - best), 0), axis=0))
    tl.store(counts + sum_at, tl.sum((value > chosen).to(tl.int64), axis=0))


@triton.jit
def _tell(
    logits, stride, vocab, rows, tokens, maxima, bests, sums, counts, numbers,
    num_blocks, num_pieces, num_top,
    PIECES: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(0).to(tl.int64)
    row = _row_of(rows, which)
    out = numbers + which * (FRONT + 2 * num_top)
    at = tl.arange(0, PIECES)
    there = at < num_pieces
    total = tl.sum(tl.load(sums + which * num_pieces + at, mask=there, other=0), axis=0)
    above = tl.sum(tl.load(counts + which * num_pieces + at, mask=there, other=0), axis=0)
    best = _value(_best(bests, which, num_pieces, PIECES))
    chosen = tl.load(logits + row * stride + tl.load(tokens + which)).to(tl.float32) + 0.0
    tl.store(out, total)
    tl.store(out + 1, above + 1)
    tl.store(out + 2, best.to(tl.int32, bitcast=True).to(tl.int64))
    tl.store(out + 3, chosen.to(tl.int32, bitcast=True).to(tl.int64))
    block = tl.arange(0, BLOCKS)
    inside = block < num_blocks
    left = tl.load(maxima + which * num_blocks + block, mask=inside, other=LOWEST).to(tl.int64)
    left = left * WORD + (BLOCKS - 1 - block)  # of equal ones the first block is the largest
    taken, taken_key = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    for number in range(num_top):
        largest = tl.max(left, axis=0)
        key = (largest >> 32).to(tl.int32)
        first = BLOCKS - 1 - (largest & (BLOCKS - 1)).to(tl.int32)
        token = first * BLOCK + tl.arange(0, BLOCK)
        keys = _keys(logits, stride, row, token, vocab)
        is_left = (keys == key) & ((key != taken_key) | (token > taken))
        taken, taken_key = tl.min(tl.where(is_left, token, vocab - 1), axis=0), key
        is_behind = (keys < key) | ((keys == key) & (token > taken))
        following = tl.max(tl.where(is_behind, keys, LOWEST), axis=0).to(tl.int64)
        left = tl.where(block == first, following * WORD + (BLOCKS - 1 - first), left)
        bits = _value(key).to(tl.int32, bitcast=True)
        tl.store(out + FRONT + number, taken.to(tl.int64))
        tl.store(out + FRONT + num_top + number, bits.to(tl.int64))


def run(
    logits: torch.Tensor, tokens: torch.Tensor, num_top: int, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the numbers of each token's row (see the op). Rows of logits may be strided.

    Shapes: logits [R, V], tokens [S] int64, rows [S] int64 or None -> [S, HEAD + 2 num_top] int64
    """
    count, vocab = len(tokens), logits.shape[1]
    block = max(LEAST_BLOCK, triton.next_power_of_2(triton.cdiv(vocab, MAX_BLOCKS)))
    num_blocks, num_pieces = triton.cdiv(vocab, block), triton.cdiv(vocab, PIECE)
    numbers = torch.empty((count, HEAD + 2 * num_top), dtype=torch.int64, device=logits.device)
    if not count:
        return numbers
    maxima, bests = (
        torch.empty((count, size), dtype=torch.int32, device=logits.device)
        for size in (num_blocks, num_pieces)
    )
    sums, counts = torch.empty((2, count, num_pieces), dtype=torch.int64, device=logits.device)
    row = (logits, logits.stride(0), vocab, rows)
    pieces = triton.next_power_of_2(num_pieces)
    _scan[count, num_pieces](
        *row, maxima, bests, num_blocks, num_pieces, BLOCKS=PIECE // block, BLOCK=block,
        num_warps=8,
    )  # fmt: skip
    _weigh[count, num_pieces](
        *row, tokens, bests, sums, counts, num_pieces, PIECES=pieces, PIECE=PIECE, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    _tell[(count,)](
        *row, tokens, maxima, bests, sums, counts, numbers, num_blocks, num_pieces, num_top,
        PIECES=pieces, BLOCKS=triton.next_power_of_2(num_blocks), BLOCK=block, num_warps=4,
    )  # fmt: skip
    return numbers
