"""wkv: RWKV-4's average over a row's past, of values weighted by e^key, that decays by channel.

For each channel, with w < 0 the change of a weight's logarithm from token to token, u the bonus of
the token's own, and before the first token a = b = 0:

    out = sigmoid(r) (a + e^(u + k) v) / (b + e^(u + k))
    a, b = e^w a + e^k v, e^w b + e^k

The state holds a / e^p, b / e^p and p, the largest logarithm of a weight so far, because sums of
e^k would overflow float32. Computed in float32. A state of 16 bits is rounded after every token, so
that results are the same however a row is cut into steps. (In Triton long rows of float32 states go
in chunks: only cuts at ends of chunks leave them the same to the bit.)

Shapes: k, v, r [T, C], decay (w) and first (u) [C] float32, state [N, 3, C]; the rows of the step
as in dovetail_kernels.states -> [T, C] in k's dtype. Mutates: state
Source: Peng et al., "RWKV: reinventing RNNs for the transformer era", 2023, arXiv 2305.13048,
section 3.1 and appendix D
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.wkv.cases import cases, perf_cases, small_cases
from dovetail_kernels.wkv.native import NATIVE
from dovetail_kernels.wkv.reference import reference

OP = Op(
    name="wkv",
    summary="decaying weighted average (RWKV-4), with kept states",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("wkv")],
)
