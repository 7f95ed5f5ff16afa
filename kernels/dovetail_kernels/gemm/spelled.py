"""gemm's packed codes spelled out: the matrix that a weight means, for products of many rows.

Floor: the packed weight once and the matrix once, at the device's bandwidth.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dovetail_kernels.gemm.unpack import quarters_of, scaled


@triton.jit
def spell(
    weight, high, panel_stride, scales, zeros, offsets, steps, offset_steps, outer, table, out,
    inputs, STORED, count,
    KIND: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, CENTER: tl.constexpr,
    SCALING: tl.constexpr, PAIRED: tl.constexpr, CODES: tl.constexpr, GROUP: tl.constexpr,
    RUN: tl.constexpr, H: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the numbers that a panel's codes of BN outputs mean. Shapes: out [STORED, inputs]"""
    n, panel = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1)
    inside, lane = n < STORED, tl.arange(0, H)
    at = n.to(tl.int64)[:, None] * H + lane[None, :]
    codes = tl.load(weight + panel.to(tl.int64) * panel_stride + at, mask=inside[:, None], other=0)
    highs, shift = codes, 0
    if HIGH == 1:
        shift = panel % 2 * 4
        at += panel.to(tl.int64) // 2 * panel_stride
        highs = tl.load(high + at, mask=inside[:, None], other=0)
    elif HIGH == 2:
        at += panel.to(tl.int64) * panel_stride
        highs = tl.load(high + at, mask=inside[:, None], other=0)
    k = panel * H * CODES
    quarters = quarters_of(
        codes, highs, shift, k, n, inside, zeros, table, count, STORED, KIND, LOW, HIGH, CENTER,
        tl.float32, "", "", False, CODES, GROUP, RUN, H, BN,
    )  # fmt: skip
    for number in tl.static_range(CODES):
        start = k + number * H
        found = scaled(
            quarters[number], start, n, inside, scales, zeros, offsets, steps, offset_steps, count,
            STORED, SCALING, PAIRED, tl.float32, False, GROUP, RUN, H, BN,
        )  # fmt: skip
        if outer is not None:
            found *= tl.load(outer + n, mask=inside, other=0.0)[:, None]
        column = start + lane
        there = inside[:, None] & (column < inputs)[None, :]
        place = out + n.to(tl.int64)[:, None] * inputs + column[None, :]
        tl.store(place, found.to(out.dtype.element_ty), mask=there)
