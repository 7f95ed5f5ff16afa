"""low_rank: rows with different adapters. out[t] = base + up^T (down x[t]) with the pair of
matrices in the row's slot, computed in float32; base if a row has none.

Parts are outputs that are computed together (q, k and v; gate and up), each with its own `down`.
Rows of the matrices beyond a slot's rank are not read; scaling is in `up` already.

Shapes: x [T, I], slots [T] int32 (-1: none), down [S, P, R, I], up [S, R, O], ranks [S] int32,
parts P sizes whose sum is O, base [O] or [T, O] -> [T, O] in x's dtype
Source: Hu et al., "LoRA: low-rank adaptation of large language models", 2021; many adapters in a
batch: Chen et al., "Punica: multi-tenant LoRA serving", 2023
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.low_rank.cases import cases, perf_cases, small_cases
from dovetail_kernels.low_rank.native import NATIVE
from dovetail_kernels.low_rank.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="low_rank",
    summary="products of two thin matrices, each row by its own adapter's",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("low_rank")],
)
