"""short_conv in Triton: the results, independent of each other, then the stored states.

`convolve` reads states and writes results: a program has some channels of one row, and every n-th
piece of its tokens. `keep` writes states when all of them have been read. If a row continues in a
block, its old and new state share a place, so blocks are processed from last to first.

Floor: x is read and the result written once, states are read and written once, at the device's
bandwidth.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.states import block_of, row_tokens, tokens_of

CHANNELS = 128
TOKENS = 16
MOST_SPLITS = 64
"""Programs that share the tokens of a row, at most."""


@triton.jit
def convolve(
    x, weight, bias, state, out, query_start, seq_lens, block_table, row_block_tokens, x_stride,
    state_stride, table_stride, channels, HAS_BIAS: tl.constexpr, IS_SILU: tl.constexpr,
    PAST: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, SPLITS: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = channel < channels
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    past = state + source * state_stride + channel[None, :] * PAST
    for begin in range(split * BT, count, SPLITS * BT):
        t = begin + tl.arange(0, BT)
        there = (t < count)[:, None] & inside[None, :]
        result = tl.zeros((BT, BC), dtype=tl.float32)
        if HAS_BIAS:
            result += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
        for i in tl.static_range(PAST + 1):
            at = t - PAST + i
            is_new = (at >= 0)[:, None]
            new = tl.load(
                x + (first + at)[:, None] * x_stride + channel[None, :],
                mask=there & is_new,
                other=0.0,
            )
            tap = new.to(tl.float32)
            if i < PAST:
                old = tl.load(
                    past + (PAST + at)[:, None], mask=there & (~is_new) & (start > 0), other=0.0
                )
                if ROUNDS:
                    tap = nearest_bfloat16(tap)
                tap = tap.to(state.dtype.element_ty).to(tl.float32) + old.to(tl.float32)
            factor = tl.load(weight + channel * (PAST + 1) + i, mask=inside, other=0.0)
            result += tap * factor.to(tl.float32)[None, :]
        if IS_SILU:
            result = result / (1.0 + tl.exp(-result))
        at_out = out + (first + t)[:, None] * channels + channel[None, :]
        tl.store(at_out, result.to(out.dtype.element_ty), mask=there)


@triton.jit
def keep(
    x, state, query_start, seq_lens, block_table, row_block_tokens, x_stride, state_stride,
    table_stride, channels, PAST: tl.constexpr, ROUNDS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """One warp: it has read all numbers of a state before it writes the first of the new one."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel, number = tl.program_id(1) * BC + tl.arange(0, BC), tl.arange(0, BP)
    inside = (channel < channels)[:, None] & (number < PAST)[None, :]
    place = channel[:, None] * PAST
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    pieces = tl.where(count > 0, (start + count - 1) // block_tokens - start // block_tokens + 1, 0)
    for piece in range(pieces - 1, -1, -1):
        end = tl.minimum((start // block_tokens + piece + 1) * block_tokens - start, count)
        # What reads the old state, and what may overwrite it, is one program's.
        is_first = (piece == 0) | (end < PAST)
        if tl.where(is_first, 0, piece % SPLITS) == split:
            at = end - PAST + number
            is_new = inside & (at >= 0)[None, :]
            new = tl.load(
                x + (first + at)[None, :] * x_stride + channel[:, None], mask=is_new, other=0.0
            )
            old = tl.load(
                state + source * state_stride + place + (PAST + at)[None, :],
                mask=inside & (at < 0)[None, :] & (start > 0),
                other=0.0,
            )
            result = new.to(tl.float32) + old.to(tl.float32)
            if ROUNDS:
                result = nearest_bfloat16(result)
            target = block_of(block_table, table_stride, row, start + end - 1, block_tokens)
            tl.store(
                state + target * state_stride + place + number[None, :],
                result.to(state.dtype.element_ty),
                mask=inside,
            )


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    activation: str = "none",
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the convolution of the rows' inputs (see the op). Rows of x may be strided.

    Shapes: x [T, C], weight [C, W], bias [C], state [N, C, W - 1] -> [T, C]. Mutates: state
    """
    assert activation in ("none", "silu"), f"short_conv has no activation {activation}"
    (tokens, channels), past = x.shape, weight.shape[1] - 1
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    rows = query_start, seq_lens, block_table, row_block_tokens
    strides = x.stride(0), state.stride(0), block_table.stride(0), channels
    some = min(CHANNELS, triton.next_power_of_2(channels))
    splits = min(MOST_SPLITS, triton.cdiv(max(1, tokens - len(seq_lens) + 1), TOKENS))
    grid = len(seq_lens), triton.cdiv(channels, some), splits
    rules: dict[str, Any] = {
        "PAST": past, "ROUNDS": state.dtype == torch.bfloat16, "BLOCK_TOKENS": block_tokens,
        "SPLITS": splits, "BC": some,
    }  # fmt: skip
    convolve[grid](
        x, weight, bias, state, out, *rows, *strides, HAS_BIAS=bias is not None,
        IS_SILU=activation == "silu", BT=1 if splits == 1 else TOKENS, **rules, num_warps=4,
    )  # fmt: skip
    keep[grid](x, state, *rows, *strides, BP=triton.next_power_of_2(past), **rules, num_warps=1)
    return out
