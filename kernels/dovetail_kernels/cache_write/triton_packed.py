"""cache_write in Triton for a cache of 4 bits: a program stores a token's keys, or its values.

The first key of every 16 tokens is stored by an earlier launch, since the others may be stored as
differences from it. Divisions round as torch's do, so the result equals the reference bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.paged_attention.triton_packed import first_start, groups_start, values_start


@triton.jit
def _round(x):
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _peak(low, high):
    """Return the largest magnitude of each head. Shapes: two [HEADS, GROUPS, 16] -> [HEADS]"""
    return tl.max(tl.max(tl.maximum(tl.abs(low), tl.abs(high)), axis=2), axis=1)


@triton.jit
def _quotient(x, divisor):
    return tl.math.div_rn(x, tl.broadcast_to(divisor, x.shape))


@triton.jit
def _scale(peak):
    return tl.math.div_rn(peak, tl.full(peak.shape, 127.0, tl.float32))


@triton.jit
def _divisor(scale):
    return tl.where(scale == 0.0, 1.0, scale)[:, None, None]


@triton.jit
def _store_grouped(low, high, numbers, groups, inside, group_inside, SIZE: tl.constexpr):
    """Store numbers of -127 .. 127 in 4 bits. Shapes: low and high [HEADS, GROUPS, 16]"""
    highest = tl.max(tl.maximum(low, high), axis=2)[:, :, None]
    lowest = tl.min(tl.minimum(low, high), axis=2)[:, :, None]
    fifteen = tl.full(highest.shape, 15.0, tl.float32)
    step = tl.minimum(tl.maximum(tl.ceil(tl.math.div_rn(highest - lowest, fifteen)), 1.0), 17.0)
    offset = _round((highest + lowest) * 0.5 - 7.5 * step)
    offset = tl.maximum(tl.minimum(offset, 127.0 - 15.0 * step), -128.0)
    a = tl.minimum(tl.maximum(_round(_quotient(low - offset, step)), 0.0), 15.0).to(tl.int32)
    b = tl.minimum(tl.maximum(_round(_quotient(high - offset, step)), 0.0), 15.0).to(tl.int32)
    tl.store(numbers, (a + b * 16).to(tl.int8), mask=inside)
    tl.store(groups, step.to(tl.int8), mask=group_inside)
    tl.store(groups + SIZE // 32, offset.to(tl.int8), mask=group_inside)


@triton.jit
def _kernel(
    k, v, cache, scales, slots, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    block_stride, half_scales, block_scales, token_scales,
    BLOCK_TOKENS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BITS: tl.constexpr,
    IS_FIRST: tl.constexpr, HEADS_WIDE: tl.constexpr, GROUPS_WIDE: tl.constexpr,
):  # fmt: skip
    token, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    place = slot % BLOCK_TOKENS
    if (slot % 16 == 0) == IS_FIRST:
        head = tl.arange(0, HEADS_WIDE)
        group = tl.arange(0, GROUPS_WIDE)[None, :, None]
        at = group * 32 + tl.arange(0, 16)[None, None, :]
        wide = head[:, None, None]
        inside = (wide < KV_HEADS) & (group < SIZE // 32) & (at >= 0)
        group_inside = (wide < KV_HEADS) & (group < SIZE // 32)
        block = cache + slot // BLOCK_TOKENS * block_stride
        line = place * KV_HEADS + wide
        byte = group * 16 + tl.arange(0, 16)[None, None, :]
        scale_at = scales + slot // BLOCK_TOKENS * block_scales + place * token_scales + head
        if half == 0:
            source = k + token * k_token_stride + wide * k_head_stride + at
            low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            high = tl.load(source + 16, mask=inside, other=0.0).to(tl.float32)
            scale = _scale(_peak(low, high))
            stored = scale
            cell = place // 16 * KV_HEADS + wide
            if BITS == 84:
                firsts = block + (place // 16 * 16 * KV_HEADS + wide) * SIZE + at
            else:
                start = first_start(BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
                firsts = block + start + cell * SIZE + at
            if not IS_FIRST:
                first_scale = tl.load(
                    scale_at - place % 16 * token_scales, mask=head < KV_HEADS, other=0.0
                )[:, None, None]
                from_low = tl.load(firsts, mask=inside, other=0).to(tl.float32) * first_scale
                from_high = tl.load(firsts + 16, mask=inside, other=0).to(tl.float32) * first_scale
                peak = _peak(low - from_low, high - from_high)
                is_away = peak < _peak(low, high)
                low = tl.where(is_away[:, None, None], low - from_low, low)
                high = tl.where(is_away[:, None, None], high - from_high, high)
                scale = tl.where(is_away, _scale(peak), scale)
                sign = tl.where(is_away, -2147483648, 0)
                stored = (scale.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
            tl.store(scale_at, stored, mask=head < KV_HEADS)
            low = _quotient(low, _divisor(scale))
            high = _quotient(high, _divisor(scale))
            if IS_FIRST or BITS == 84:
                target = firsts
                if BITS == 84:
                    target = block + line * SIZE + at
                tl.store(target, _round(low).to(tl.int8), mask=inside)
                tl.store(target + 16, _round(high).to(tl.int8), mask=inside)
            else:
                groups = groups_start(False, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
                groups_at = block + groups + line * (SIZE // 16) + group
                numbers_at = block + line * (SIZE // 2) + byte
                _store_grouped(low, high, numbers_at, groups_at, inside, group_inside, SIZE)
        else:
            source = v + token * v_token_stride + wide * v_head_stride + at
            low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            high = tl.load(source + 16, mask=inside, other=0.0).to(tl.float32)
            scale = _scale(_peak(low, high))
            tl.store(scale_at + half_scales, scale, mask=head < KV_HEADS)
            low = _quotient(low, _divisor(scale))
            high = _quotient(high, _divisor(scale))
            groups = groups_start(True, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
            groups_at = block + groups + line * (SIZE // 16) + group
            start = values_start(BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
            numbers_at = block + start + line * (SIZE // 2) + byte
            _store_grouped(low, high, numbers_at, groups_at, inside, group_inside, SIZE)


def run(
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor,
    bits: tuple[int, int],
) -> None:
    """Store keys, which are rotated, and values. Shapes: k and v [T, K, D], slots [T], cache
    [2, N, P, K, D] and scales [2, N, P, K] as `triton_packed.parts_of` returns them

    Mutates: the blocks that `cache` is a view of
    """
    tokens, heads, size = k.shape
    for is_first in (True, False):
        _kernel[(tokens, 2)](
            k, v, cache, scales, slots, *k.stride()[:2], *v.stride()[:2], cache.stride(1),
            *scales.stride()[:3], BLOCK_TOKENS=cache.shape[2], KV_HEADS=heads, SIZE=size,
            BITS=10 * bits[0] + bits[1], IS_FIRST=is_first,
            HEADS_WIDE=triton.next_power_of_2(heads),
            GROUPS_WIDE=triton.next_power_of_2(size // 32), num_warps=4,
        )  # fmt: skip
