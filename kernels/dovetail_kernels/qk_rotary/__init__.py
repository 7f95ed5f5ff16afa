"""qk_rotary: in place, norms and then rotates every q and k head of a fused q, k, v row.

A head's norm is rms_norm over D with its weight plus `offset`, omitted if there is no weight. The
rotation is that of `rotary`, with cos and sin looked up in a table by the row's position: over the
first 2 * half features, in pairs (i, i + half) or, interleaved, (2 i, 2 i + 1). v is unchanged. A
table without features (half = 0) rotates nothing: heads are only normed.

Shapes: qkv [T, (H + 2 K) D], cos and sin [positions, half] float32, positions [T] int64, q_weight
and k_weight [D]
Source: Su et al., "RoFormer", 2021; Henry et al., "Query-key normalization", 2020
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.qk_rotary.cases import cases, perf_cases, small_cases
from dovetail_kernels.qk_rotary.native import NATIVE
from dovetail_kernels.qk_rotary.reference import reference

OP = Op(
    name="qk_rotary",
    summary="norm and rotation of query and key heads",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("qk_rotary")],
)
