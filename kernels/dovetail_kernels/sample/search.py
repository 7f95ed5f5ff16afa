"""The Triton kernel that finds the bounds of top-k and top-p, one program a row, without sorting.

Tokens are compared by keys: the bits of |x|, so that key 0 is the best token. A bound is the
smallest key up to which the tokens reach the requested count or weight. The maxima of blocks give a
first bound (as many tokens as blocks reach it); the tokens up to there are gathered, and if they
are at most FOUND, the rest happens in registers. If they are more, passes over the row, three
pivots each, narrow the keys down first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from dovetail_kernels.sample import definition
from dovetail_kernels.sample.definition import MAX_VOCAB
from dovetail_kernels.sample.tiles import (
    INFINITE,
    LEAST,
    MAGNITUDE,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    field_of,
    is_sampled,
    key_of,
    row_best,
    values,
    weight,
    x_of,
)

FOUND = 4096
"""Tokens that a program can hold."""
TILE = 4096
PENALISED_TILE = 2048
"""Penalties take registers."""
PROBE = tl.constexpr(64)
"""Blocks whose maxima give the first bound for top-p."""
LARGEST = tl.constexpr(0x7F7FFFFF)
"""The key of the largest finite float."""
WEIGHTLESS = tl.constexpr(0x41E80000)
"""The key of x = -29: from there on tokens weigh nothing."""
OCTAVE = tl.constexpr(1 << 23)
MASS_SLACK = tl.constexpr(definition.MASS_SLACK)
COUNT_BITS = tl.constexpr(51)
"""A lane's sum of weights, of up to 2^10 tokens, stays below the bits that count its tokens."""
LOG_UNIT = tl.constexpr(-27.725887222397812)
"""log(2^-40)"""


@triton.jit
def _select(key, share, goal, low, high):
    """Return the smallest key in (low, high] up to which shares reach the goal; high if none."""
    while high - low > 1:
        middle = low + (high - low) // 2
        is_reached = tl.sum(tl.where(key <= middle, share, 0), axis=0) >= goal
        high = tl.where(is_reached, middle, high)
        low = tl.where(is_reached, low, middle)
    return high


@triton.jit
def _keys(
    logits, stride, row, token, vocab, wishes, seen, best, factor, HAS_PENALTIES: tl.constexpr
):  # fmt: skip
    value = values(logits, stride, row, token, vocab, wishes, seen, HAS_PENALTIES)
    return tl.where(token < vocab, key_of((value - best) * factor), MAGNITUDE)


@triton.jit
def _gather(
    logits, stride, row, vocab, wishes, seen, best, factor, low, high, found,
    HAS_PENALTIES: tl.constexpr, TILE: tl.constexpr, FOUND: tl.constexpr,
):  # fmt: skip
    """Write the keys in (low, high], as far as there is room; return how many there are."""
    count = tl.zeros([], tl.int32)
    for start in tl.range(0, vocab, TILE, num_stages=3):
        token = start + tl.arange(0, TILE)
        key = _keys(logits, stride, row, token, vocab, wishes, seen, best, factor, HAS_PENALTIES)
        is_taken = ((key > low) & (key <= high)).to(tl.int32)
        more = tl.sum(is_taken, axis=0)
        if more > 0:
            place = count + tl.cumsum(is_taken, axis=0) - 1
            tl.store(found + place, key, mask=(is_taken > 0) & (place < FOUND))
        count += more
    tl.debug_barrier()
    return count


@triton.jit
def _held(found, count, FOUND: tl.constexpr):
    """Return the gathered keys; places without one hold a key above all others."""
    at = tl.arange(0, FOUND)
    return tl.load(found + at, mask=at < count, other=MAGNITUDE)


@triton.jit
def _shares(key, BY_WEIGHT: tl.constexpr):
    share = (key != MAGNITUDE).to(tl.int64)
    if BY_WEIGHT:
        share *= weight(x_of(tl.minimum(key, INFINITE)))
    return share


@triton.jit
def _measure(
    logits, stride, row, vocab, wishes, seen, best, factor, first, second, third,
    HAS_PENALTIES: tl.constexpr, BY_WEIGHT: tl.constexpr, TILE: tl.constexpr,
    COUNTS: tl.constexpr,
):  # fmt: skip
    """Return the counts and weights of the tokens up to three keys."""
    a = tl.zeros([TILE], tl.int64)
    b, c = a, a
    for start in tl.range(0, vocab, TILE, num_stages=3):
        token = start + tl.arange(0, TILE)
        key = _keys(logits, stride, row, token, vocab, wishes, seen, best, factor, HAS_PENALTIES)
        share = tl.full([TILE], 1, tl.int64) << COUNTS
        if BY_WEIGHT:
            share += weight(x_of(tl.minimum(key, INFINITE)))
        a += tl.where(key <= first, share, 0)
        b += tl.where(key <= second, share, 0)
        c += tl.where(key <= third, share, 0)
    below = (tl.full([], 1, tl.int64) << COUNTS) - 1
    return (
        tl.sum(a >> COUNTS, axis=0), tl.sum(a & below, axis=0),
        tl.sum(b >> COUNTS, axis=0), tl.sum(b & below, axis=0),
        tl.sum(c >> COUNTS, axis=0), tl.sum(c & below, axis=0),
    )  # fmt: skip


@triton.jit
def _wide(
    logits, stride, row, vocab, wishes, seen, best, factor, goal, low, low_count, low_sum, high,
    found, HAS_PENALTIES: tl.constexpr, BY_WEIGHT: tl.constexpr, TILE: tl.constexpr,
    FOUND: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """Return the smallest key in (low, high] up to which the row reaches the goal.

    Up to `low` there are low_count tokens that make low_sum, less than the goal."""
    high_count = tl.zeros([], tl.int64) + vocab
    while (high - low > 1) & (high_count - low_count > FOUND):
        # Bounds are most often within few octaves of the far end.
        apart = (high - low) // 4
        apart = tl.where((high <= WEIGHTLESS) & (apart > OCTAVE), OCTAVE, apart)
        apart = tl.maximum(apart, 1)
        first = tl.maximum(high - 3 * apart, low + 1)
        second = tl.maximum(high - 2 * apart, low + 1)
        third = tl.maximum(high - apart, low + 1)
        n1, w1, n2, w2, n3, w3 = _measure(
            logits, stride, row, vocab, wishes, seen, best, factor, first, second, third,
            HAS_PENALTIES, BY_WEIGHT, TILE, COUNTS,
        )  # fmt: skip
        if BY_WEIGHT:
            s1, s2, s3 = w1, w2, w3
        else:
            s1, s2, s3 = n1, n2, n3
        in_1, in_2, in_3 = s1 >= goal, s2 >= goal, s3 >= goal
        high = tl.where(in_1, first, tl.where(in_2, second, tl.where(in_3, third, high)))
        high_count = tl.where(in_1, n1, tl.where(in_2, n2, tl.where(in_3, n3, high_count)))
        low_count = tl.where(in_1, low_count, tl.where(in_2, n1, tl.where(in_3, n2, n3)))
        low_sum = tl.where(in_1, low_sum, tl.where(in_2, s1, tl.where(in_3, s2, s3)))
        low = tl.where(in_1, low, tl.where(in_2, first, tl.where(in_3, second, third)))
    if high - low > 1:
        tl.debug_barrier()
        count = _gather(
            logits, stride, row, vocab, wishes, seen, best, factor, low, high, found,
            HAS_PENALTIES, TILE, FOUND,
        )  # fmt: skip
        key = _held(found, count, FOUND)
        high = _select(key, _shares(key, BY_WEIGHT), goal - low_sum, low, high)
    return high


@triton.jit
def _goal(total, top_p):
    wanted = total.to(tl.float64) * (top_p - MASS_SLACK)
    whole = wanted.to(tl.int64)
    whole += (whole.to(tl.float64) < wanted).to(tl.int64)
    return tl.maximum(whole, 1)


@triton.jit
def _farthest(total, goal, vocab, bound):
    """Return a key up to which tokens certainly weigh the goal: a token below an even share of what
    may be left out cannot be top-p's bound."""
    share = (total - goal).to(tl.float64) / vocab - 1.0
    x = tl.log(tl.maximum(share, 2.0).to(tl.float32)) + LOG_UNIT - 0.02
    key = tl.where(share < 2.0, WEIGHTLESS, key_of(tl.minimum(x, 0.0)))
    return tl.minimum(tl.minimum(key, WEIGHTLESS), bound)


@triton.jit
def _search(
    logits, stride, vocab, wishes, seen, bests, maxima, sums, bounds, room, num_blocks, num_pieces,
    HAS_PENALTIES: tl.constexpr, PIECES: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr,
    FOUND: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    best = row_best(bests, row, num_pieces, PIECES)
    factor = field_of(wishes, row, TEMPERATURE).to(tl.float32)
    top_k, top_p = field_of(wishes, row, TOP_K).to(tl.int64), field_of(wishes, row, TOP_P)
    is_k = (top_k > 0) & (top_k < vocab)
    if is_sampled(best, factor) & (is_k | (top_p < 1.0)):
        found = room + row * FOUND
        min_key = key_of(field_of(wishes, row, LEAST).to(tl.float32))
        at = tl.arange(0, BLOCKS)
        own = tl.load(maxima + row * num_blocks + at, mask=at < num_blocks, other=float("-inf"))
        block_key = key_of((own - best) * factor)
        is_block = (at < num_blocks).to(tl.int64)
        probe = tl.where(is_k, top_k, PROBE)
        minus_one = tl.full([], -1, tl.int32)
        start = _select(block_key, is_block, probe, minus_one, tl.full([], INFINITE, tl.int32))
        start = tl.minimum(start, tl.minimum(min_key, tl.where(is_k, LARGEST, WEIGHTLESS)))
        count = _gather(
            logits, stride, row, vocab, wishes, seen, best, factor, minus_one, start, found,
            HAS_PENALTIES, TILE, FOUND,
        )  # fmt: skip
        is_held = count <= FOUND
        key = _held(found, tl.where(is_held, count, 0), FOUND)
        none = tl.zeros([], tl.int64)
        bound = min_key
        is_cut = is_k & (count >= top_k)
        if is_cut:
            if is_held:
                bound = _select(key, _shares(key, False), top_k, minus_one, start)
            else:
                bound = _wide(
                    logits, stride, row, vocab, wishes, seen, best, factor, top_k, minus_one,
                    none, none, start, found, HAS_PENALTIES, False, TILE, FOUND, COUNTS,
                )  # fmt: skip
        if top_p < 1.0:
            piece = tl.arange(0, PIECES)
            mine = tl.load(sums + row * num_pieces + piece, mask=piece < num_pieces, other=0)
            total = tl.sum(mine, axis=0)
            share = _shares(key, True)
            if is_cut:
                # Of the tokens that tie at the bound as many count as top-k has room for.
                above = tl.sum((key < bound).to(tl.int64), axis=0)
                total = tl.sum(tl.where(key < bound, share, 0), axis=0)
                if count > FOUND:
                    above, total, _n2, _w2, _n3, _w3 = _measure(
                        logits, stride, row, vocab, wishes, seen, best, factor, bound - 1,
                        bound - 1, bound - 1, HAS_PENALTIES, True, TILE, COUNTS,
                    )  # fmt: skip
                tied = tl.sum(weight(x_of(bound + tl.zeros([1], tl.int32))), axis=0)
                total += (top_k - above) * tied
            goal = _goal(total, top_p)
            weight_so_far = tl.sum(share, axis=0)
            if is_held & (is_cut | (weight_so_far >= goal)):
                bound = _select(key, share, goal, minus_one, start)
            else:
                low = tl.where(is_held, start, minus_one)
                low_count = tl.where(is_held, count, 0).to(tl.int64)
                low_sum = tl.where(is_held, weight_so_far, 0)
                high = tl.where(is_cut, bound, _farthest(total, goal, vocab, min_key))
                bound = _wide(
                    logits, stride, row, vocab, wishes, seen, best, factor, goal, low,
                    low_count, low_sum, high, found, HAS_PENALTIES, True, TILE, FOUND, COUNTS,
                )  # fmt: skip
        tl.store(bounds + row, x_of(bound))


def search_kernel(
    row: tuple[Any, ...],
    bests: torch.Tensor,
    maxima: torch.Tensor,
    sums: torch.Tensor,
    bounds: torch.Tensor,
    sizes: dict[str, Any],
) -> None:
    """Put into `bounds` the least x that each row keeps. Mutates: bounds"""
    count, num_blocks = maxima.shape
    vocab, has_penalties = row[2], sizes["HAS_PENALTIES"]
    widest = PENALISED_TILE if has_penalties and vocab < MAX_VOCAB // 2 else TILE
    tile = min(widest, triton.next_power_of_2(vocab))
    room = torch.empty((count, FOUND), dtype=torch.int32, device=maxima.device)
    _search[(count,)](
        *row, bests, maxima, sums, bounds, room, num_blocks, bests.shape[1], **sizes,
        BLOCKS=triton.next_power_of_2(num_blocks), TILE=tile, FOUND=FOUND,
        COUNTS=COUNT_BITS.value, num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip
