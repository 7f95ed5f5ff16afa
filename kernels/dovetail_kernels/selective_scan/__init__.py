"""selective_scan: the recurrence of Mamba's first version, token after token, from stored states.

With delta = softplus(dt + dt_bias), for each channel and each of its S numbers of state: h =
exp(delta a) h + delta x b; out = c . h + d x, times silu(z) if there is a z. Computed in float32. A
state of 16 bits is rounded after every token, so that results are the same however a row is cut
into steps; a token's own output is made before its state is rounded. (In Triton long rows of
float32 states go in chunks: only cuts at ends of chunks leave them the same to the bit.)

Shapes: x, dt, z [T, D], a [D, S] float32 (negative), b, c [T, S], d, dt_bias [D] float32, state
[N, D, S]; the rows of the step as in dovetail_kernels.states -> [T, D] in x's dtype. Mutates: state
Source: Gu, Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.selective_scan.cases import cases, perf_cases, small_cases
from dovetail_kernels.selective_scan.native import NATIVE
from dovetail_kernels.selective_scan.reference import reference

OP = Op(
    name="selective_scan",
    summary="recurrence of selective state spaces (Mamba 1), with kept states",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("selective_scan")],
)
