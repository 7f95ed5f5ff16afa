"""moe in Triton: pairs sorted by expert, two grouped products, a weighted sum.

A pair is a token and one of its experts; one whose expert is -1 takes no part. Sorting is three
small kernels: the number of pairs per expert, the start of its blocks of rows, and the pair of
every row. The maximum number of blocks follows from the shapes, so that nothing waits for the
device; blocks of no expert end immediately.
The assignment of pairs to rows varies, but no number depends on it: rows are summed separately.

Floor: the matrices of the experts that are picked once, and for every pair F values written and
read, and E.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from dovetail_kernels.gemm.gpu import GpuPacked, Sorted

BLOCK = 512


@triton.jit
def _count(experts, counts, pairs, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    expert = tl.load(experts + pair, mask=pair < pairs, other=-1)
    tl.atomic_add(counts + expert, 1, mask=expert >= 0)


@triton.jit
def _plan(
    counts, cursor, expert_of, blocks, num_experts, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Store each block's expert, and where each expert's rows begin."""
    expert = tl.arange(0, EXPERTS)
    inside = expert < num_experts
    own = (tl.load(counts + expert, mask=inside, other=0) + ROWS - 1) // ROWS
    ends = tl.cumsum(own, axis=0)
    if tl.program_id(0) == 0:
        tl.store(cursor + expert, (ends - own) * ROWS, mask=inside)
    block = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    before = tl.sum((block[:, None] >= ends[None, :]).to(tl.int32), axis=1)
    found = tl.where(block < tl.sum(own, axis=0), before, -1)
    tl.store(expert_of + block, found, mask=block < blocks)


@triton.jit
def _place(experts, cursor, pair_of, pairs, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    expert = tl.load(experts + pair, mask=pair < pairs, other=-1)
    row = tl.atomic_add(cursor + expert, 1, mask=expert >= 0)
    tl.store(pair_of + row, pair, mask=expert >= 0)


@triton.jit
def _add_up(parts, experts, out, size, PICKED: tl.constexpr, WIDTH: tl.constexpr):
    """Add the outputs of a token's experts, in their order. Shapes: parts [T, A, E], experts
    [T, A], out [T, E]"""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < size
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for place in tl.static_range(PICKED):
        pair = token * PICKED + place
        is_there = inside & (tl.load(experts + pair) >= 0)
        total += tl.load(parts + pair * size + column, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=inside)


def run(
    x: torch.Tensor,
    gate_up: GpuPacked,
    down: GpuPacked,
    weights: torch.Tensor,
    experts: torch.Tensor,
    activation: str,
    is_gated: bool = True,
    biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    limit: float = 0.0,
) -> torch.Tensor:
    """Return the weighted sum of the picked experts' outputs (see the op).

    Shapes: x [T, E], weights and experts [T, A], biases [X, 2F] and [X, E], contiguous -> [T, E]
    """
    assert gate_up.is_gated == is_gated, "the matrices are packed for the other kind of experts"
    tokens, picked = experts.shape
    out = torch.empty((tokens, down.out_size), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    average = -(-tokens * picked // gate_up.num_experts)
    plans = [weight.plan(average, x) for weight in (gate_up, down)]
    height = min(plan.rows for plan in plans)
    plans = [replace(plan, rows=height) for plan in plans]
    pair_of, expert_of = sort(experts, height, gate_up.num_experts)
    pairs = tokens * picked
    first = Sorted(pair_of=pair_of, expert_of=expert_of, pairs=pairs, picked=picked)
    one, two = biases or (None, None)
    inner = gate_up.multiply_sorted(x, first, plans[0], activation, biases=one, limit=limit)
    second = Sorted(
        pair_of=pair_of, expert_of=expert_of, pairs=pairs, picked=1, weights=weights.flatten()
    )
    parts = down.multiply_sorted(inner, second, plans[1], biases=two)
    width = min(1024, triton.next_power_of_2(down.out_size))
    _add_up[(tokens, triton.cdiv(down.out_size, width))](
        parts, experts.contiguous(), out, down.out_size, PICKED=picked, WIDTH=width, num_warps=4
    )
    return out


def sort(experts: torch.Tensor, rows: int, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pair in every row, and the expert of every block of rows (-1 for none).

    Pairs of the expert -1 are in no row.
    Shapes: experts [T, A] -> [blocks * rows] int32, T * A for no pair; [blocks] int32
    """
    pairs, device = experts.numel(), experts.device
    blocks = pairs // rows + min(pairs, num_experts)
    counts = torch.zeros((2, num_experts), dtype=torch.int32, device=device)
    pair_of = torch.full((blocks * rows,), pairs, dtype=torch.int32, device=device)
    expert_of = torch.empty(blocks, dtype=torch.int32, device=device)
    flat = experts.reshape(-1)
    width = min(BLOCK, triton.next_power_of_2(pairs))
    _count[(triton.cdiv(pairs, width),)](flat, counts[0], pairs, WIDTH=width)
    _plan[(triton.cdiv(blocks, 32),)](
        counts[0], counts[1], expert_of, blocks, num_experts, ROWS=rows,
        EXPERTS=triton.next_power_of_2(num_experts), WIDTH=32,
    )  # fmt: skip
    _place[(triton.cdiv(pairs, width),)](flat, counts[1], pair_of, pairs, WIDTH=width)
    return pair_of, expert_of
