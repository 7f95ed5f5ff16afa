"""cache_write in Triton: a program stores one token's keys, or its values, of all heads.

Rounding is written out, so that an interpreter and a GPU store the same bits.

Floor: k and v are read and their slots written once: the time of those bytes at the device's
bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.rounding import FLOAT8_STEPS, nearest_bfloat16, nearest_float8


@triton.jit
def _kernel(
    k, v, cache, scales, slots, k_scale, v_scale,
    k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    half_stride, block_stride, token_stride, head_stride,
    half_scales, block_scales, token_scales,
    BLOCK_TOKENS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr,
    FRACTION: tl.constexpr, LEAST: tl.constexpr, IS_INT8: tl.constexpr, ROUNDS: tl.constexpr,
    HEADS_WIDE: tl.constexpr, SIZE_WIDE: tl.constexpr,
):  # fmt: skip
    token, half = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token)
    block, place = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
    head, at = tl.arange(0, HEADS_WIDE)[:, None], tl.arange(0, SIZE_WIDE)[None, :]
    inside = (head < HEADS) & (at < SIZE)
    if half == 0:
        source = k + token * k_token_stride + head * k_head_stride + at
        x = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        scale = k_scale
    else:
        source = v + token * v_token_stride + head * v_head_stride + at
        x = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        scale = v_scale
    if IS_INT8:
        own = tl.math.div_rn(tl.max(tl.abs(x), axis=1), tl.full((HEADS_WIDE,), 127.0, tl.float32))
        heads = tl.arange(0, HEADS_WIDE)
        scale_at = scales + half * half_scales + block * block_scales + place * token_scales + heads
        tl.store(scale_at, own, mask=heads < HEADS)
        divisor = tl.where(own == 0.0, 1.0, own)[:, None]
        x = tl.math.div_rn(x, tl.broadcast_to(divisor, (HEADS_WIDE, SIZE_WIDE)))
        x = (x + 12582912.0) - 12582912.0
    elif LIMIT > 0:
        x = tl.math.div_rn(x, tl.full((HEADS_WIDE, SIZE_WIDE), 0.0, tl.float32) + scale)
        small = tl.minimum(tl.maximum(x, -LIMIT), LIMIT)
        x = tl.where(x == x, nearest_float8(small, FRACTION, LEAST), x)
    elif ROUNDS:
        x = nearest_bfloat16(x)
    slot_start = cache + half * half_stride + block * block_stride + place * token_stride
    tl.store(slot_start + head * head_stride + at, x.to(cache.dtype.element_ty), mask=inside)


def run(
    k: torch.Tensor,
    v: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Store k and v (see the op). Tokens and heads may have any stride; each head is contiguous.

    Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T], scales [2, N, P, K]
    Mutates: cache, scales
    """
    tokens, heads, size = k.shape
    fraction, smallest = FLOAT8_STEPS.get(cache.dtype, (0, 0))
    rules: dict[str, Any] = {
        "BLOCK_TOKENS": cache.shape[2],
        "HEADS": heads,
        "SIZE": size,
        "LIMIT": float(torch.finfo(cache.dtype).max) if fraction else 0.0,
        "FRACTION": fraction,
        "LEAST": smallest,
        "IS_INT8": cache.dtype == torch.int8,
        "ROUNDS": cache.dtype == torch.bfloat16 and k.dtype != torch.bfloat16,
        "HEADS_WIDE": triton.next_power_of_2(heads),
        "SIZE_WIDE": triton.next_power_of_2(size),
    }
    scale_strides = (0, 0, 0) if scales is None else scales.stride()[:3]
    numbers = rules["HEADS_WIDE"] * rules["SIZE_WIDE"]
    _kernel[(tokens, 2)](
        k, v, cache, scales, slots, k_scale, v_scale, *k.stride()[:2], *v.stride()[:2],
        *cache.stride()[:4], *scale_strides, **rules, num_warps=min(8, max(1, numbers // 256)),
    )  # fmt: skip
