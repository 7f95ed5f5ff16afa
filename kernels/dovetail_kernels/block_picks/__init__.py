"""block_picks: each query's heads pick the blocks of their row's past that have the best keys.

A row of S cached tokens, the last n of them queried, has queries at positions p = S - n .. S - 1,
of H heads that share a key a token. With s_j = q_h . k_j for j <= p, a block of B tokens has the
score max_j s_j over its tokens, and the last `num_local` blocks up to p's own are better than all
others: the min(p // B + 1, K) best blocks, of equal ones the lowest, in ascending order; then -1.

A score's bits depend only on its query and its key, so that a row's picks are its own.

Shapes: q [T, H, D], cache [N, P, D], block_table [R, C] int32, query_start [R + 1] int32, seq_lens
[R] int32 -> [T, H, K] int32
Source: MiniMax, MiniMax-M3, 2026, as transformers has it
"""

from dovetail_kernels.block_picks.cases import cases, perf_cases, small_cases
from dovetail_kernels.block_picks.native import NATIVE
from dovetail_kernels.block_picks.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="block_picks",
    summary="the blocks of tokens whose best keys score highest",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE],
)
