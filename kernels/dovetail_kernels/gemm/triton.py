"""gemm in Triton: a tile of outputs times a tile of rows; packed codes become numbers in registers.

Weights are the left operand, so that a few rows fill the narrow side of the matrix instructions and
unpacked values stay in registers. Codes of 2 and 4 bits are packed four to a word, so that the
lowest of consecutive words are consecutive inputs, and so on: no code changes lanes. 3, 5 and 6
bits are one of these plus 1 or 2 bits in a separate byte. A scale that all inputs of a dot product
share is multiplied after it; others are multiplied into the weights.
A part of the inputs a program (`parts`), added in their order by a second kernel, gives few rows
enough programs; how many parts there are does not depend on the rows.

Floor: the packed weight once (its bytes over the bandwidth), or 2 M N K operations at the rate of
the operands' type, whichever is longer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gemm.gpu import GpuPacked
from dovetail_kernels.gemm.unpack import factor, quarters_of, scaled
from dovetail_kernels.gpu.rounding import nearest_float8

ROUND = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding it rounds a number to the nearest integer, ties to even."""
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _sigmoid(v):
    return 1.0 / (1.0 + tl.exp2(-v * LOG2E))


@triton.jit
def activate(v, ACTIVATION: tl.constexpr):
    """Return the activation of float32 values."""
    if ACTIVATION == "silu":
        v = v * _sigmoid(v)
    elif ACTIVATION == "gelu":
        v = 0.5 * v * (1.0 + tl.math.erf(v * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(u)) / 2 is the sigmoid of 2 u
        v = v * _sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v))
    elif ACTIVATION == "quick_gelu":
        v = v * _sigmoid(1.702 * v)
    elif ACTIVATION == "relu":
        v = tl.maximum(v, 0.0)
    elif ACTIVATION == "relu2":
        v = tl.maximum(v, 0.0) * tl.maximum(v, 0.0)
    return v


@triton.jit
def _gated(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr):
    """Return act(gate) * up of float32 values. LIMIT: the clamp of "swiglu_oai" and "silu_clamped"
    (see moe), which preserves NaN."""
    if ACTIVATION == "swiglu_oai" or ACTIVATION == "silu_clamped":
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        if ACTIVATION == "swiglu_oai":
            result = gate * _sigmoid(1.702 * gate) * (up + 1.0)
        else:
            result = gate * _sigmoid(gate) * up
    else:
        result = activate(gate, ACTIVATION) * up
    return result


@triton.jit
def _right(x, x_at, x_inside, k, inputs, dot_type: tl.constexpr, FLOAT8_X: tl.constexpr,
           H: tl.constexpr):  # fmt: skip
    """Return H inputs of the rows. Shapes: x_at [BM] -> [H, BM]"""
    at = k + tl.arange(0, H)
    found = tl.load(
        x + x_at[None, :] + at[:, None], mask=x_inside[None, :] & (at < inputs)[:, None], other=0
    )
    if FLOAT8_X:
        found = found.to(tl.float8e4nv, bitcast=True)
    if found.dtype != dot_type:
        found = found.to(tl.float32).to(dot_type)
    return found


@triton.jit
def _write(found, row, n, m_inside, stored, bias, residual, residual_stride, pair_weights, out,
           out_stride, STORED, BIAS_ROWS: tl.constexpr, IS_GATED: tl.constexpr,
           ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, BN: tl.constexpr,
           BM: tl.constexpr):  # fmt: skip
    """Apply what follows a product and store it. Shapes: found [BN, BM], row [BM], n [BN]"""
    if BIAS_ROWS:
        at = row[None, :] * STORED + stored[:, None]
        is_stored = (n < STORED)[:, None] & m_inside[None, :]
        found += tl.load(bias + at, mask=is_stored, other=0.0).to(tl.float32)
    elif bias is not None:
        found += tl.load(bias + stored, mask=n < STORED, other=0.0).to(tl.float32)[:, None]
    if IS_GATED:
        pairwise = tl.permute(tl.reshape(found, (BN // 2, 2, BM)), (0, 2, 1))
        gate, up = tl.split(pairwise)
        found = _gated(gate, up, ACTIVATION, LIMIT)
        column = tl.min(n, axis=0) // 2 + tl.arange(0, BN // 2)
        is_stored = (column < STORED // 2)[:, None] & m_inside[None, :]
    else:
        found = activate(found, ACTIVATION)
        column = n
        is_stored = (n < STORED)[:, None] & m_inside[None, :]
    if pair_weights is not None:
        found *= tl.load(pair_weights + row, mask=m_inside, other=0.0).to(tl.float32)[None, :]
    if residual is not None:
        at = row[None, :] * residual_stride + column[:, None]
        found += tl.load(residual + at, mask=is_stored, other=0.0).to(tl.float32)
    at = row[None, :] * out_stride + column[:, None]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=is_stored)


@triton.jit
def _add(acc, quarters, k, x, x_at, m_inside, inputs, stored, inside, scales, zeros, offsets, steps,
         offset_steps, count, STORED, SCALING: tl.constexpr, PAIRED: tl.constexpr,
         dot_type: tl.constexpr, sum_type: tl.constexpr, IS_CENTERED: tl.constexpr,
         FLOAT8_X: tl.constexpr, CODES: tl.constexpr, SHARED: tl.constexpr, GROUP: tl.constexpr,
         RUN: tl.constexpr, H: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Return acc + the product of CODES times H inputs. Shapes: acc [BN, BM]"""
    for number in tl.static_range(CODES):
        at = k + number * H
        left = scaled(
            quarters[number], at, stored, inside, scales, zeros, offsets, steps, offset_steps,
            count, STORED, SCALING, PAIRED, dot_type, IS_CENTERED, GROUP, RUN, H, BN,
        )  # fmt: skip
        right = _right(x, x_at, m_inside, at, inputs, dot_type, FLOAT8_X, H)
        if SCALING != "after":
            acc = tl.dot(left, right, acc, input_precision="ieee", out_dtype=acc.dtype)
        else:
            if number % SHARED == 0:
                own = tl.dot(left, right, input_precision="ieee", out_dtype=sum_type)
            else:
                own = tl.dot(left, right, own, input_precision="ieee", out_dtype=sum_type)
            if number % SHARED == SHARED - 1:
                scale = factor(scales, steps, stored, inside, at // GROUP, count, STORED, RUN)
                acc += own.to(tl.float32) * scale[:, None]
    return acc


@triton.jit
def _tile(rows, STORED, BM: tl.constexpr, BN: tl.constexpr):
    """Return a program's block of rows and its outputs: eight blocks of rows go together."""
    tile = tl.program_id(0)
    wide = tl.cdiv(STORED, BN)
    top = tile // (8 * wide) * 8
    height = tl.minimum(tl.cdiv(rows, BM) - top, 8)
    block = top + tile % (8 * wide) % height
    return block, tile % (8 * wide) // height * BN + tl.arange(0, BN)


@triton.jit
def _sum(
    x, x_at, m_inside, inputs, weight, high, panel_stride, row_stride, stored, inside, begin, end,
    scales, zeros, offsets, steps, offset_steps, table, count, STORED,
    KIND: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, CENTER: tl.constexpr,
    SCALING: tl.constexpr, PAIRED: tl.constexpr, dot_type: tl.constexpr, TEXT: tl.constexpr,
    PLACES: tl.constexpr, IS_CENTERED: tl.constexpr, FLOAT8_X: tl.constexpr,
    IS_PADDED: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, CODES: tl.constexpr,
    SHARED: tl.constexpr, H: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Return the products of the panels begin .. end - 1, added up. Shapes: -> [BN, BM]"""
    lane = tl.arange(0, H)
    at = stored.to(tl.int64)[:, None] * row_stride + lane[None, :]
    w_at = weight + at + begin.to(tl.int64) * panel_stride
    if HIGH == 1:
        high_at = high + at + begin.to(tl.int64) // 2 * panel_stride
    elif HIGH == 2:
        high_at = high + at + begin.to(tl.int64) * panel_stride
    sum_type: tl.constexpr = tl.int32 if dot_type == tl.int8 else tl.float32
    acc = tl.zeros((BN, BM), dtype=sum_type if SCALING == "none" else tl.float32)
    for panel in range(begin, end):
        there = inside[:, None]
        if not IS_PADDED:
            there = there & (panel * H + lane < inputs)[None, :]
        codes = tl.load(w_at, mask=there, other=0)
        w_at += panel_stride
        highs, shift = codes, 0
        if HIGH == 1:
            shift = panel % 2 * 4
            highs = tl.load(high_at, mask=there, other=0)
            high_at += panel % 2 * panel_stride
        elif HIGH == 2:
            highs = tl.load(high_at, mask=there, other=0)
            high_at += panel_stride
        k = panel * H * CODES
        quarters = quarters_of(
            codes, highs, shift, k, stored, inside, zeros, table, count, STORED, KIND, LOW, HIGH,
            CENTER, dot_type, TEXT, PLACES, IS_CENTERED, CODES, GROUP, RUN, H, BN,
        )  # fmt: skip
        acc = _add(
            acc, quarters, k, x, x_at, m_inside, inputs, stored, inside, scales, zeros, offsets,
            steps, offset_steps, count, STORED, SCALING, PAIRED, dot_type, sum_type, IS_CENTERED,
            FLOAT8_X, CODES, SHARED, GROUP, RUN, H, BN,
        )  # fmt: skip
    return acc


@triton.jit
def product(
    x, x_stride, x_scales, weight, high, panel_stride, row_stride, expert_stride, high_stride,
    scales, zeros, offsets, steps, offset_steps, outer, table,
    bias, residual, residual_stride, pair_of, expert_of, pair_weights, out, out_stride,
    rows, inputs, STORED, count, runs, panels, pairs, panels_per_part,
    KIND: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, CENTER: tl.constexpr,
    SCALING: tl.constexpr, PAIRED: tl.constexpr, dot_type: tl.constexpr,
    TEXT: tl.constexpr, PLACES: tl.constexpr, IS_CENTERED: tl.constexpr, FLOAT8_X: tl.constexpr,
    IS_PADDED: tl.constexpr, BIAS_ROWS: tl.constexpr, IS_GATED: tl.constexpr,
    IS_SPLIT: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, PICKED: tl.constexpr,
    GROUP: tl.constexpr, RUN: tl.constexpr, CODES: tl.constexpr, SHARED: tl.constexpr,
    H: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Multiply BM rows by BN outputs. With experts, rows are pairs of a token and its expert,
    sorted by expert; `pair_of` says which. Gated outputs are read gate, up, gate, up.

    `weight` is [panels, STORED, H] bytes, or words of four codes (CODES), or plain rows (depending
    on its strides); `high` the bits of codes above LOW, HIGH of them. SHARED dot products of a
    word's codes share their scales.
    """
    part = tl.program_id(1)
    block, n = _tile(rows, STORED, BM, BN)
    m = block * BM + tl.arange(0, BM)
    inside = n < STORED
    stored = (n % 2) * (STORED // 2) + n // 2 if IS_GATED else n
    if expert_of is not None:
        expert = tl.load(expert_of + block)
        if expert < 0:
            return
        m = tl.load(pair_of + m)
        m_inside = m < pairs
        x_row = (m // PICKED).to(tl.int64)
        own = expert.to(tl.int64) * STORED
        weight += expert.to(tl.int64) * expert_stride
        high = high if high is None else high + expert.to(tl.int64) * high_stride
        scales = scales if scales is None else scales + own * count
        zeros = zeros if zeros is None else zeros + own * count
        offsets = offsets if offsets is None else offsets + own * count
        steps = steps if steps is None else steps + own * runs
        offset_steps = offset_steps if offset_steps is None else offset_steps + own * runs
        outer = outer if outer is None else outer + own
        bias = bias if bias is None else bias + own
    else:
        m_inside = m < rows
        x_row = m.to(tl.int64)
    x_at = x_row * x_stride
    begin = part * panels_per_part
    acc = _sum(
        x, x_at, m_inside, inputs, weight, high, panel_stride, row_stride, stored, inside, begin,
        tl.minimum(begin + panels_per_part, panels), scales, zeros, offsets, steps, offset_steps,
        table, count, STORED, KIND, LOW, HIGH, CENTER, SCALING, PAIRED, dot_type, TEXT, PLACES,
        IS_CENTERED, FLOAT8_X, IS_PADDED, GROUP, RUN, CODES, SHARED, H, BN, BM,
    )  # fmt: skip
    found = acc.to(tl.float32)
    if outer is not None:
        found *= tl.load(outer + stored, mask=inside, other=0.0)[:, None]
    if x_scales is not None:
        found *= tl.load(x_scales + x_row, mask=m_inside, other=0.0)[None, :]
    row = m.to(tl.int64)
    if IS_SPLIT:
        at = (part * rows + row)[None, :] * STORED + stored[:, None]
        tl.store(out + at, found, mask=inside[:, None] & m_inside[None, :])
    else:
        _write(
            found, row, n, m_inside, stored, bias, residual, residual_stride, pair_weights, out,
            out_stride, STORED, BIAS_ROWS, IS_GATED, ACTIVATION, LIMIT, BN, BM,
        )  # fmt: skip


@triton.jit
def finish(
    sums, bias, residual, residual_stride, out, out_stride, rows, width, STORED,
    PARTS: tl.constexpr, BIAS_ROWS: tl.constexpr, IS_GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the parts of a row in their order and apply what follows. Shapes: sums [PARTS, M, N]"""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    found = tl.zeros((BLOCK,), dtype=tl.float32)
    up = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        at = sums + (part * rows + row) * STORED + column
        found += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        if IS_GATED:
            up += tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        if BIAS_ROWS:
            bias += row * STORED
        found += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        if IS_GATED:
            up += tl.load(bias + width + column, mask=inside, other=0.0).to(tl.float32)
    found = activate(found, ACTIVATION)
    if IS_GATED:
        found *= up
    if residual is not None:
        at = row * residual_stride + column
        found += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def round_rows(x, x_stride, out, scales, inputs, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Make a row 8-bit: its largest magnitude becomes LARGEST. Shapes: x [M, K], scales [M]"""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    magnitudes = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, inputs, BLOCK):
        column = start + lane
        own = tl.load(x + row * x_stride + column, mask=column < inputs, other=0.0)
        magnitudes = tl.maximum(magnitudes, tl.abs(own.to(tl.float32)))
    largest = tl.max(magnitudes, axis=0)
    tl.store(scales + row, tl.div_rn(largest, LARGEST * 1.0))
    inverse = tl.where(
        largest > 0, tl.div_rn(LARGEST * 1.0, tl.where(largest > 0, largest, 1.0)), 0.0
    )
    for start in range(0, inputs, BLOCK):
        column = start + lane
        own = tl.load(x + row * x_stride + column, mask=column < inputs, other=0.0)
        rounded = own.to(tl.float32) * inverse
        if out.dtype.element_ty == tl.int8:
            rounded = (rounded + ROUND) - ROUND
        else:
            rounded = nearest_float8(rounded, 3, 121)
        tl.store(
            out + row * inputs + column, rounded.to(out.dtype.element_ty), mask=column < inputs
        )


def run(
    x: torch.Tensor,
    weight: GpuPacked,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    activation: str = "none",
    is_gated: bool = False,
) -> torch.Tensor:
    """Return the product by a packed weight (see GpuPacked)."""
    assert weight.is_gated == is_gated
    return weight(x, bias, residual, activation)
