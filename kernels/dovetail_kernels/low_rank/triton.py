"""low_rank in Triton: two kernels; the first row of a slot in a block does all of its rows.

There is a program for every row, so that the grid depends only on the shapes, and a captured step
works for other slots and ranks. Rows of a block with the same slot are one dot product by the first
row's program, and the others end immediately: weights are read once a block, and 8 rows with 8
slots fill 8 times as many programs as 8 rows with one. `shrink` writes parts of the inputs' sums
(as many for any number of rows), which `expand` adds in their order.

Floor: the weights of each slot that rows have once for every block of rows, x, base and the result
once, at the device's bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu import interprets

FEW_ROWS, MANY_ROWS = 16, 64
"""Rows of a block: a dot product has 16 at least."""
RANKS = 16
"""Ranks of a dot product, which has as many at least."""
INPUTS, WIDE_INPUTS = 128, 32
"""Inputs of a dot product, and of one of float32, which has fewer registers for them."""
PART = 512
"""Inputs that are one part of a sum: more are shared by several programs."""
COLUMNS = 128


@triton.jit
def _leads(slots, row, rows, num_slots, ranks, BM: tl.constexpr):
    """Return a row's slot, its rank, which rows of its block have the slot, and whether it is the
    first of them. Shapes: -> .., .., [BM] int1, .."""
    block = row // BM * BM + tl.arange(0, BM)
    others = tl.load(slots + block, mask=block < rows, other=-1)
    slot = tl.load(slots + row)
    is_known = (slot >= 0) & (slot < num_slots)
    rank = tl.load(ranks + slot, mask=is_known, other=0)
    first = tl.min(tl.where(others == slot, block, rows), axis=0)
    return slot.to(tl.int64), rank, others == slot, first == row


@triton.jit
def shrink(
    x, x_stride, slots, ranks, down, h, rows, inputs, num_slots, parts, largest, PART: tl.constexpr,
    dot_type: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """h[part of the inputs, t, p, r] = down[slot, p, r] x[t] over those inputs."""
    row = tl.program_id(0)
    pieces = tl.cdiv(largest, BR)
    part, rank0 = tl.program_id(1) // pieces, tl.program_id(1) % pieces * BR
    slot, rank, is_own, is_first = _leads(slots, row, rows, num_slots, ranks, BM)
    if (rank <= rank0) | (not is_first):
        return
    block = (row // BM * BM + tl.arange(0, BM)).to(tl.int64)
    r = rank0 + tl.arange(0, BR)
    weights = down + ((slot * parts + part) * largest + r).to(tl.int64)[None, :] * inputs
    start = tl.program_id(2) * PART
    acc = tl.zeros((BM, BR), dtype=tl.float32)
    for k0 in range(0, PART, BK):
        k = start + k0 + tl.arange(0, BK)
        there = k < inputs
        left = tl.load(
            x + block[:, None] * x_stride + k[None, :],
            mask=is_own[:, None] & there[None, :],
            other=0.0,
        ).to(tl.float32)
        right = tl.load(
            weights + k[:, None], mask=there[:, None] & (r < rank)[None, :], other=0.0
        ).to(tl.float32)
        acc = tl.dot(left.to(dot_type), right.to(dot_type), acc, input_precision="ieee")
    at = ((tl.program_id(2) * rows + block) * parts + part)[:, None] * largest + r[None, :]
    tl.store(h + at, acc, mask=is_own[:, None] & (r < rank)[None, :])


@triton.jit
def expand(
    h, slots, ranks, up, base, base_stride, out, rows, outputs, first, size, part, num_slots, parts,
    largest, SPLITS: tl.constexpr, dot_type: tl.constexpr, BM: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """out[t, n] = base + sum over r of h[t, part, r] up[slot, r, n] for the columns of a part."""
    row = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < size
    n += first
    slot, rank, is_own, is_first = _leads(slots, row, rows, num_slots, ranks, BM)
    block = (row // BM * BM + tl.arange(0, BM)).to(tl.int64)
    if rank <= 0:  # a row without an adapter only does itself
        is_own, is_first = block == row, row == row
    if not is_first:
        return
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for rank0 in range(0, rank, BR):
        r = rank0 + tl.arange(0, BR)
        there = r < rank
        thin = tl.zeros((BM, BR), dtype=tl.float32)
        for split in tl.static_range(SPLITS):
            at = ((split * rows + block) * parts + part)[:, None] * largest + r[None, :]
            thin += tl.load(h + at, mask=is_own[:, None] & there[None, :], other=0.0)
        wide = tl.load(
            up + (slot * largest + r).to(tl.int64)[:, None] * outputs + n[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        ).to(tl.float32)
        acc = tl.dot(thin.to(dot_type), wide.to(dot_type), acc, input_precision="ieee")
    is_stored = is_own[:, None] & inside[None, :]
    if base is not None:
        at = block[:, None] * base_stride + n[None, :]
        acc += tl.load(base + at, mask=is_stored, other=0.0).to(tl.float32)
    tl.store(
        out + block[:, None] * outputs + n[None, :], acc.to(out.dtype.element_ty), mask=is_stored
    )


def run(
    x: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    ranks: torch.Tensor,
    parts: Sequence[int],
    base: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return base + up^T (down x) by each row's slot (see the op). Rows of x and base may be
    strided; weights are contiguous. The thin product is rounded to x's dtype if that has 16 bits.

    Shapes: x [T, I], slots [T], down [S, P, R, I], up [S, R, O], ranks [S], base [O] or [T, O] ->
    [T, O]
    """
    (rows, inputs), (num_slots, num_parts, largest, _) = x.shape, down.shape
    outputs = up.shape[2]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if not rows:
        return out
    splits = triton.cdiv(inputs, PART)
    h = torch.empty((splits, rows, num_parts, largest), dtype=torch.float32, device=x.device)
    is_wide = x.dtype == torch.float32
    few_inputs = WIDE_INPUTS if is_wide else INPUTS
    many_rows = MANY_ROWS // 2 if is_wide else MANY_ROWS
    tiles = {
        "dot_type": _dot_type(x.dtype),
        "BM": FEW_ROWS if rows <= FEW_ROWS else many_rows,
        "BR": RANKS,
        "num_warps": 4,
    }
    shrink[(rows, num_parts * triton.cdiv(largest, RANKS), splits)](
        x, x.stride(0), slots, ranks, down, h, rows, inputs, num_slots, num_parts, largest,
        PART=PART, BK=min(few_inputs, max(16, triton.next_power_of_2(inputs))), **tiles,
    )  # fmt: skip
    first = 0
    for part, size in enumerate(parts):
        columns = min(COLUMNS // 2 if is_wide else COLUMNS, max(16, triton.next_power_of_2(size)))
        expand[(rows, triton.cdiv(size, columns))](
            h, slots, ranks, up, base, 0 if base is None or base.dim() == 1 else base.stride(0),
            out, rows, outputs, first, size, part, num_slots, num_parts, largest,
            SPLITS=splits, BN=columns, **tiles,
        )  # fmt: skip
        first += size
    return out


def _dot_type(dtype: torch.dtype) -> tl.dtype:
    """Return the type that is multiplied for rows of a dtype."""
    known = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return tl.float32 if interprets() else known.get(dtype, tl.float32)
