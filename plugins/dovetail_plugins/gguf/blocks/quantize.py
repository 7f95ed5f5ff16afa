"""Rows of floats as GGUF blocks.

Q8_0, and Q4_0 without importances, are rounded to nearest, exactly as ggml rounds them (source:
quantize_row_q8_0_ref and quantize_row_q4_0_ref in
https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c); all others search their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from dovetail_plugins.gguf.blocks import encode, search
from dovetail_plugins.gguf.blocks.integers import LEVELS
from dovetail_plugins.gguf.blocks.search import Group
from dovetail_plugins.gguf.blocks.types import BY_NAME, FLOAT_DTYPES

BLOCK = 32
CHUNK_VALUES = 1 << 17
"""Values that are quantized together, so that they stay in the processor's cache."""

Blocks = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Blocks of weights [B, values] and of their importances -> [B, block bytes] uint8."""


def to_blocks(
    kind: str, weight: torch.Tensor, importances: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows of a matrix in a type; plain floats for F16 and BF16.

    `importances` are the mean squares of the matrix's inputs, None for equal ones.
    Shapes: weight [..., O, I]; importances [I] float32 -> [..., O, bytes of a row] uint8
    """
    if kind in FLOAT_DTYPES:
        return weight.to(getattr(torch, FLOAT_DTYPES[kind]))
    rows = weight.reshape(-1, weight.shape[-1])
    usable = _usable(importances)
    step = max(1, CHUNK_VALUES // rows.shape[1])
    parts = [rows[start : start + step] for start in range(0, len(rows), step)]
    blocks = _at_once(lambda part: _rows(kind, part.float(), usable), parts)
    return torch.cat(blocks).view(*weight.shape[:-1], -1)


def _at_once(
    quantized: Callable[[torch.Tensor], torch.Tensor], parts: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the parts quantized, each by one thread: threads that share the many small operations
    of a part would wait for each other, on a busy machine most of the time."""
    count = torch.get_num_threads()
    if count == 1 or len(parts) == 1:
        return [quantized(part) for part in parts]
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(quantized, parts))
    finally:
        torch.set_num_threads(count)


def _usable(importances: torch.Tensor | None) -> torch.Tensor | None:
    """Return importances around 1, none of them 0: an input that the text never had may come."""
    if importances is None:
        return None
    mean = importances.mean()
    return None if mean <= 0 else (importances / mean).clamp_(min=1e-4)


def _rows(kind: str, rows: torch.Tensor, importances: torch.Tensor | None) -> torch.Tensor:
    if importances is None and kind in QUANTIZERS:
        return QUANTIZERS[kind](rows)
    size = BY_NAME[kind].values
    blocks = rows.reshape(-1, size)
    if importances is None:
        return _SEARCHED[kind](blocks, None).view(len(rows), -1)
    # Large weights count more, too: outputs are then nearer than with importances alone (0.5B
    # Qwen, ffn_down in Q4_K: a divergence of 0.00339 instead of 0.00354). Source: PR 4861.
    square = blocks.square()
    wide = importances.expand_as(rows).reshape(-1, size)
    wide = wide * (square + 2 * square.mean(1, keepdim=True)).sqrt_()
    return _SEARCHED[kind](blocks, wide).view(len(rows), -1)


def to_q8_0(weight: torch.Tensor) -> torch.Tensor:
    """Return blocks of a float16 step and 32 int8. Shapes: [O, I] -> [O, I / 32 * 34] uint8"""
    parts = weight.float().unflatten(1, (-1, BLOCK))
    steps = parts.abs().amax(-1, keepdim=True) / 127
    scaled = parts * torch.where(steps == 0, 0, 1 / steps)
    values = scaled.sign() * (scaled.abs() + 0.5).floor()  # halves go away from 0
    return _blocks(steps, values.to(torch.int8).view(torch.uint8))


def to_q4_0(weight: torch.Tensor) -> torch.Tensor:
    """Return blocks of a float16 step and 32 values in 16 bytes, value i sharing a byte with value
    i + 16. Shapes: [O, I] -> [O, I / 32 * 18] uint8"""
    parts = weight.float().unflatten(1, (-1, BLOCK))
    place = parts.abs().argmax(-1, keepdim=True)
    steps = parts.gather(-1, place) / -8  # the largest magnitude is met exactly, by the level -8
    turned = torch.where(steps == 0, 0, 1 / steps)
    levels = (parts * turned + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    low, high = levels.chunk(2, dim=-1)
    return _blocks(steps, low | (high << 4))


def _blocks(steps: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return steps and values side by side. Shapes: [O, N, 1], [O, N, n] -> [O, N * (2 + n)]"""
    heads = steps.to(torch.float16).contiguous().view(torch.uint8)
    return torch.cat((heads, values), dim=-1).flatten(1)


QUANTIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Q8_0": to_q8_0, "Q4_0": to_q4_0}
"""Types that are rounded to nearest without importances."""


def _grouped(blocks: torch.Tensor, weight: torch.Tensor | None, size: int) -> Group:
    """Return blocks as groups of `size` in columns. Shapes: [B, values] -> [G, N]"""

    def turned(values: torch.Tensor) -> torch.Tensor:
        return values.reshape(-1, size).t().contiguous()

    return Group(x=turned(blocks), weight=None if weight is None else turned(weight))


def _bytes(levels: torch.Tensor, num_blocks: int, shift: int = 0) -> torch.Tensor:
    """Return levels, raised to begin at 0, block by block. Shapes: [G, N] -> [B, values] uint8"""
    return levels.add_(shift).to(torch.uint8).t().reshape(num_blocks, -1)


def _ends(middle: float, spread: float, count: int) -> Sequence[float]:
    """Return candidates around the one that uses all levels."""
    return [middle + spread * (2 * i / (count - 1) - 1) for i in range(count)]


@cache
def _table() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the level of the IQ4 types, and its number, that is nearest to each half of a number
    from -128 up: all borders between levels are halves. Shapes: 2 x [512]"""
    levels = torch.tensor(LEVELS, dtype=torch.float32)
    borders = (levels[1:] + levels[:-1]) / 2
    numbers = torch.bucketize(torch.arange(-128, 128, 0.5), borders, right=True)
    return levels[numbers], numbers.to(torch.uint8)


def _halves_from_low(scaled: torch.Tensor) -> torch.Tensor:
    """Return how many halves a value lies above -128. Shapes: any -> flat int32"""
    return (scaled * 2).add_(256).clamp_(0, 511).to(torch.int32).flatten()


def _numbers(scaled: torch.Tensor) -> torch.Tensor:
    """Return the number of the nearest level of the IQ4 types. Shapes: any -> the same, uint8"""
    return _table()[1].index_select(0, _halves_from_low(scaled)).view_as(scaled)


def _nonlinear(scaled: torch.Tensor) -> torch.Tensor:
    """Round to the levels of the IQ4 types."""
    return _table()[0].index_select(0, _halves_from_low(scaled)).view_as(scaled)


def _one_scale(
    low: int, ends: Sequence[float], blocks: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the steps of blocks of one group, and their levels raised by -low."""
    group = _grouped(blocks, weight, blocks.shape[1])
    rounding = search.integers(low, -low - 1)
    steps = search.scales(group, rounding, ends).half()
    levels = rounding(group.x * search.inverse(steps.float()))
    return encode.halves(steps), _bytes(levels, len(blocks), -low)


def _q4_0(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    steps, levels = _one_scale(-8, [*_ends(-8, 1, 7), *_ends(8, 1, 5)], blocks, weight)
    return torch.cat((steps, encode.q4(levels)), dim=1)


def _q5_0(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    steps, levels = _one_scale(-16, [*_ends(-16, 1, 7), *_ends(16, 1, 5)], blocks, weight)
    return torch.cat((steps, *encode.q5(levels)), dim=1)


def _q8_0(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return to_q8_0(blocks)  # importances change nothing at this precision


def _with_offset(
    high: int, blocks: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the steps and offsets of blocks of one group, and their levels."""
    group = _grouped(blocks, weight, blocks.shape[1])
    scale, offset = search.ranges(group, high, _ends(high + 0.3, 1.2, 9), is_free=True)
    scale, offset = scale.half(), offset.half()
    shifted = (group.x - offset.float()).mul_(search.inverse(scale.float()))
    heads = torch.cat((encode.halves(scale), encode.halves(offset)), dim=1)
    return heads, _bytes(search.integers(0, high)(shifted), len(blocks))


def _q4_1(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    heads, levels = _with_offset(15, blocks, weight)
    return torch.cat((heads, encode.q4(levels)), dim=1)


def _q5_1(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    heads, levels = _with_offset(31, blocks, weight)
    return torch.cat((heads, *encode.q5(levels)), dim=1)


def _pairs(
    size: int,
    high: int,
    highest: int,
    ends: Sequence[float],
    rounds: int,
    blocks: torch.Tensor,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, search.Steps]:
    """Return levels 0 to `high`, block by block, and the steps and codes of scales and offsets."""
    group, rounding = _grouped(blocks, weight, size), search.integers(0, high)
    scale, offset = search.ranges(group, high, ends)
    best = scale.view(len(blocks), -1), offset.view(len(blocks), -1)
    steps = search.code_pairs(group, rounding, best, highest, rounds)
    return _bytes(steps.levels(group, rounding), len(blocks)), steps


def _q2_k(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    levels, found = _pairs(16, 3, 15, _ends(3.1, 0.9, 13), 3, blocks, weight)
    codes = found.codes.to(torch.uint8) | found.offset_codes.to(torch.uint8) << 4
    steps = encode.halves(found.steps), encode.halves(-found.offset_steps)
    return torch.cat((codes, encode.packed(levels, 2, 32), *steps), dim=1)


def _k_offset_head(found: search.Steps) -> torch.Tensor:
    """Return the first sixteen bytes of Q4_K and Q5_K."""
    steps = encode.halves(found.steps), encode.halves(-found.offset_steps)
    codes = found.codes.to(torch.uint8), found.offset_codes.to(torch.uint8)
    return torch.cat((*steps, encode.six_bits(*codes)), dim=1)


def _q4_k(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    levels, found = _pairs(32, 15, 63, _ends(15.3, 1.5, 13), 1, blocks, weight)
    return torch.cat((_k_offset_head(found), encode.packed(levels, 4, 32)), dim=1)


def _q5_k(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    levels, found = _pairs(32, 31, 63, _ends(31.3, 1.2, 11), 1, blocks, weight)
    high, low = encode.packed(levels >> 4, 1, 32), encode.packed(levels & 15, 4, 32)
    return torch.cat((_k_offset_head(found), high, low), dim=1)


def _coded(
    size: int,
    low: int,
    code_low: int,
    ends: Sequence[float],
    rounds: int,
    blocks: torch.Tensor,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return levels raised by -low, codes as int8, and steps as bytes."""
    group, rounding = _grouped(blocks, weight, size), search.integers(low, -low - 1)
    best = search.scales(group, rounding, ends).view(len(blocks), -1)
    steps, codes = search.codes(group, rounding, best, code_low, -code_low - 1, rounds)
    scale = (steps.unsqueeze(1) * codes).flatten()
    levels = rounding(group.x * search.inverse(scale))
    return _bytes(levels, len(blocks), -low), codes.to(torch.int8), encode.halves(steps)


def _q3_k(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    ends = [*_ends(-4, 0.9, 9), *_ends(3.6, 0.9, 9)]
    levels, codes, steps = _coded(16, -4, -32, ends, 2, blocks, weight)
    high, low = encode.packed(levels >> 2, 1, 32), encode.packed(levels & 3, 2, 32)
    raised = (codes + 32).view(torch.uint8)
    return torch.cat((high, low, encode.q3_codes(raised), steps), dim=1)


def _q6_k(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    ends = [*_ends(-32, 1, 9), *_ends(31.5, 1, 7)]
    levels, codes, steps = _coded(16, -32, -128, ends, 1, blocks, weight)
    low, high = encode.packed(levels & 15, 4, 64), encode.packed(levels >> 4, 2, 32)
    return torch.cat((low, high, codes.view(torch.uint8), steps), dim=1)


_IQ4_ENDS = [*_ends(-120, 20, 9), *_ends(112, 18, 9)]


def _iq4_nl(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    group = _grouped(blocks, weight, BLOCK)
    steps = search.scales(group, _nonlinear, _IQ4_ENDS).half()
    numbers = _numbers(group.x * search.inverse(steps.float()))
    return torch.cat((encode.halves(steps), encode.q4(_bytes(numbers, len(blocks)))), dim=1)


def _iq4_xs(blocks: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    group = _grouped(blocks, weight, BLOCK)
    best = search.scales(group, _nonlinear, _IQ4_ENDS).view(len(blocks), -1)
    steps, codes = search.codes(group, _nonlinear, best, -32, 31, 1)
    scale = (steps.unsqueeze(1) * codes).flatten()
    numbers = _bytes(_numbers(group.x * search.inverse(scale)), len(blocks))
    high, low = encode.iq4_codes((codes + 32).to(torch.uint8))
    return torch.cat((encode.halves(steps), high, low, encode.q4(numbers)), dim=1)


_SEARCHED: dict[str, Blocks] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
WRITTEN = (*_SEARCHED, "F16", "BF16")
"""The types that can be written."""
