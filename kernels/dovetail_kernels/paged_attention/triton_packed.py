"""Keys and values of 4 bits in Triton: where a block has them, and how they become numbers.

A block holds, one after the other: key numbers [P, K, D] in bytes or [P, K, D / 2], value numbers
[P, K, D / 2], [P, K, 2, D / 32] steps and offsets of keys if they have 4 bits, and of values, with
keys of 4 bits the first key of every 16 tokens in bytes [P / 16, K, D], scales [2, P, K] float32.
A byte's upper half is the number 16 further on. What numbers mean is in `integers.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def values_start(BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
               BITS: tl.constexpr):  # fmt: skip
    """Return where a block's value numbers begin."""
    return BLOCK_TOKENS * KV_HEADS * (SIZE if BITS == 84 else SIZE // 2)


@triton.jit
def groups_start(IS_VALUES: tl.constexpr, BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr,
               SIZE: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """Return where a block's steps and offsets of keys, or of values, begin."""
    start = values_start(BLOCK_TOKENS, KV_HEADS, SIZE, BITS) + BLOCK_TOKENS * KV_HEADS * SIZE // 2
    if IS_VALUES and BITS == 44:
        start += BLOCK_TOKENS * KV_HEADS * (SIZE // 16)
    return start


@triton.jit
def first_start(BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
             BITS: tl.constexpr):  # fmt: skip
    """Return where a block's first keys begin, with keys of 4 bits."""
    return (groups_start(True, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
            + BLOCK_TOKENS * KV_HEADS * (SIZE // 16))  # fmt: skip


@triton.jit
def _numbers(
    place, line, at, inside, IS_VALUES: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Return numbers of 4 bits as whole numbers of 8. Shapes: place and line [KEYS], at [WIDE]"""
    start = values_start(BLOCK_TOKENS, KV_HEADS, SIZE, BITS) if IS_VALUES else 0
    byte = at // 32 * 16 + at % 16
    where = place[:, None] + start + (line * (SIZE // 2))[:, None] + byte[None, :]
    both = tl.load(where, mask=inside, other=0).to(tl.int32) & 255
    q = (both >> (at % 32 // 16 * 4)[None, :]) & 15
    groups = groups_start(IS_VALUES, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
    where = place[:, None] + groups + (line * (SIZE // 16))[:, None] + (at // 32)[None, :]
    step = tl.load(where, mask=inside, other=0).to(tl.int32)
    offset = tl.load(where + SIZE // 32, mask=inside, other=0).to(tl.int32)
    return (q * step + offset).to(tl.float32)


@triton.jit
def packed_values(
    place, line, at, inside, BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Return the numbers of values, without their scales.

    Shapes: place [KEYS] addresses of blocks, line [KEYS] -> [KEYS, WIDE]
    """
    return _numbers(place, line, at, inside, True, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)


@triton.jit
def packed_keys(
    place, line, key, scale_at, token_scales, at, inside, is_there,
    BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Return keys, the first of their 16 tokens added to those that are differences from it.

    Shapes: place [KEYS] addresses of blocks, line, key and scale_at [KEYS] -> [KEYS, WIDE]
    """
    ahead = key % 16
    cell = line - ahead * KV_HEADS
    if BITS == 44:
        cell = cell // KV_HEADS // 16 * KV_HEADS + cell % KV_HEADS
        firsts = place + first_start(BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
        x = _numbers(place, line, at, inside, False, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
    else:
        firsts = place
        own = place[:, None] + (line * SIZE)[:, None] + at[None, :]
        x = tl.load(own, mask=inside, other=0).to(tl.float32)
    first = tl.load(firsts[:, None] + (cell * SIZE)[:, None] + at[None, :], mask=inside, other=0)
    first = first.to(tl.float32)
    scale = tl.load(scale_at, mask=is_there, other=0.0)
    first_scale = tl.load(scale_at - ahead * token_scales, mask=is_there, other=0.0)
    is_away = scale.to(tl.int32, bitcast=True) < 0
    x = tl.where((ahead == 0)[:, None], first, x) * tl.abs(scale)[:, None]
    return tl.where(is_away[:, None], x + first * first_scale[:, None], x)


def parts_of(
    blocks: torch.Tensor, bits: tuple[int, int], block_tokens: int, heads: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a view whose shape is that of plain numbers, but of which only the blocks' addresses
    count, and the scales. Shapes: blocks [N, bytes] int8 -> [2, N, P, K, D], [2, N, P, K]"""
    num_blocks, num_bytes = blocks.shape
    shape = (2, num_blocks, block_tokens, heads, size)
    scales = blocks[:, num_bytes - 8 * block_tokens * heads :].view(torch.float32)
    scales = scales.unflatten(1, (2, block_tokens, heads)).movedim(0, 1)
    return blocks[:, 0].view(1, num_blocks, 1, 1, 1).expand(shape), scales
