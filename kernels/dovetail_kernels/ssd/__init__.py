"""ssd: the recurrence of Mamba 2; each head has one decay for its whole state.

delta = clamp(softplus(dt + dt_bias), *dt_limit), or 1 if dt is None (lightning attention) h =
exp(delta a) h + delta x (outer) b, out = h c + d x

H / G consecutive heads share b and c. Rows of x, dt, b and c may be strided, as parts of one wider
matrix. dovetail_kernels.states says which states a row begins with and stores. A 16-bit state is
rounded when it is stored; the definition and the native kernel round it after every token.

Shapes: x [T, H, P], dt [T, H], a, d, dt_bias [H] float32, b and c [T, G, S], state [N, H, P, S] ->
[T, H, P] in x's dtype
Source: Dao & Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060); Qin et al., "Lightning
Attention-2", 2024 (arXiv 2401.04658)
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.ssd.cases import cases, perf_cases, small_cases
from dovetail_kernels.ssd.chunked import CHUNKED
from dovetail_kernels.ssd.native import NATIVE
from dovetail_kernels.ssd.reference import reference

OP = Op(
    name="ssd",
    summary="Mamba 2's recurrence over the tokens of each row",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("ssd"), CHUNKED],
)
