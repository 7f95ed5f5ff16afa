"""index_picks: each query picks the tokens of its row's past that an indexer scores highest.

A row of S cached tokens, the last n of them queried, has queries at positions p = S - n .. S - 1,
of H heads each with a weight. With s_j = sum_h w_h relu(q_h . k_j) for j <= p, of one key a token:
the min(p + 1, K) positions of the highest s, of equal ones the lowest, in ascending order; then -1.
The order of scores that are not numbers is unspecified: before or after all others.

A score's bits must depend only on its query and its key, so that a row's picks are its own.

Shapes: q [T, H, D], weights [T, H] float32, cache [N, P, D], block_table [R, B] int32, query_start
[R + 1] int32, seq_lens [R] int32 -> [T, K] int32
Source: DeepSeek-AI, DeepSeek-V3.2, 2025, arXiv 2512.02556, section 2.1
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.index_picks.cases import cases, perf_cases, small_cases
from dovetail_kernels.index_picks.native import NATIVE
from dovetail_kernels.index_picks.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="index_picks",
    summary="the tokens that an indexer scores highest",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("index_picks")],
)
