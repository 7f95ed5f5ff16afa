"""qk_rotary in Triton: one program per few heads of a token, in place.

Each rotated pair is held as (a, b) in two registers; unrotated features are only read if heads are
normed. Floor: the q and k heads read and written once, cos and sin of the token read once (heads of
one token find them in the cache), at the device's bandwidth; 3 operations a rotated element, 4 more
for a norm.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

TILE = 1024
"""Elements that one program does: whole heads, as many as fit."""


@triton.jit
def _weight(weight, column, inside, offset):
    return tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset


@triton.jit
def _scaled(
    x, q_weight, k_weight, rate, is_q, column, inside, offset,
    HAS_Q: tl.constexpr, HAS_K: tl.constexpr,
):  # fmt: skip
    q_scale, k_scale = 1.0, 1.0
    if HAS_Q:
        q_scale = _weight(q_weight, column, inside, offset)[None, :] * rate
    if HAS_K:
        k_scale = _weight(k_weight, column, inside, offset)[None, :] * rate
    return x * tl.where(is_q, q_scale, k_scale)


@triton.jit
def _kernel(
    qkv, qkv_stride, cos, sin, positions, q_weight, k_weight,
    num_heads, num_turned_heads, size, half, eps, offset,
    HAS_Q: tl.constexpr, HAS_K: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
    HAS_REST: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head, is_q = (head < num_turned_heads)[:, None], (head < num_heads)[:, None]
    pair = tl.arange(0, HALF)
    is_pair = pair < half
    if IS_INTERLEAVED:
        first = 2 * pair
        second = first + 1
    else:
        first = pair
        second = pair + half
    start = qkv + token * qkv_stride + head[:, None] * size
    inside = is_head & is_pair[None, :]
    a = tl.load(start + first[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(start + second[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_Q or HAS_K:
        squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        if HAS_REST:
            column = 2 * half + tl.arange(0, REST)
            is_rest = column < size
            rest_inside = is_head & is_rest[None, :]
            rest = tl.load(start + column[None, :], mask=rest_inside, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, axis=1)
        rate = tl.rsqrt(squares / size + eps)[:, None]
        a = _scaled(a, q_weight, k_weight, rate, is_q, first, is_pair, offset, HAS_Q, HAS_K)
        b = _scaled(b, q_weight, k_weight, rate, is_q, second, is_pair, offset, HAS_Q, HAS_K)
        if HAS_REST:
            rest = _scaled(
                rest, q_weight, k_weight, rate, is_q, column, is_rest, offset, HAS_Q, HAS_K
            )
            copied = rest.to(qkv.dtype.element_ty)
            tl.store(start + column[None, :], copied, mask=rest_inside)
    row = tl.load(positions + token) * half
    c = tl.load(cos + row + pair, mask=is_pair, other=0.0)[None, :]
    s = tl.load(sin + row + pair, mask=is_pair, other=0.0)[None, :]
    tl.store(start + first[None, :], (a * c - b * s).to(qkv.dtype.element_ty), mask=inside)
    tl.store(start + second[None, :], (b * c + a * s).to(qkv.dtype.element_ty), mask=inside)


def run(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    is_interleaved: bool = False,
) -> None:
    """Norm and rotate the q and k heads (see the op). Rows may be strided.

    Shapes: qkv [T, (H + 2 K) D], cos and sin [positions, half] float32 contiguous, positions [T]
    Mutates: qkv
    """
    turned_heads, half = num_heads + num_kv_heads, cos.shape[1]
    size = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
    heads = max(1, TILE // triton.next_power_of_2(size))
    heads = min(heads, triton.next_power_of_2(turned_heads))
    shape: dict[str, Any] = {
        "HAS_Q": q_weight is not None,
        "HAS_K": k_weight is not None,
        "IS_INTERLEAVED": is_interleaved,
        "HAS_REST": size > 2 * half,
        "HEADS": heads,
        "HALF": triton.next_power_of_2(max(1, half)),
        "REST": triton.next_power_of_2(max(1, size - 2 * half)),
    }
    if qkv.shape[0]:
        _kernel[(qkv.shape[0], triton.cdiv(turned_heads, heads))](
            qkv, qkv.stride(0), cos, sin, positions, q_weight, k_weight,
            num_heads, turned_heads, size, half, eps, offset, **shape, num_warps=4,
        )  # fmt: skip
