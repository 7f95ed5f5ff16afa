"""gated_norm: the root mean square norm of each group of numbers, gated before it or after it.

gate_first: norm(x silu(gate)) weight (Mamba 2); else norm(x) weight silu(gate) (gated delta
networks), with norm(v) = v / sqrt(mean(v^2) + eps) over groups of `group_size` consecutive numbers.
Computed in float32. A weight of one group's size is the same for all groups.

Shapes: x, gate [T, D], weight [D] or [group_size] -> [T, D] in x's dtype
Source: Dao, Gu, "Transformers are SSMs", 2024; Yang et al., "Gated delta networks", 2024
"""

from dovetail_kernels.gated_norm.cases import cases, perf_cases, small_cases
from dovetail_kernels.gated_norm.native import NATIVE
from dovetail_kernels.gated_norm.reference import reference
from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op

OP = Op(
    name="gated_norm",
    summary="root mean square norm of groups, with a gate",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("gated_norm")],
)
