"""token_mask: logits of forbidden tokens become -inf; NaN stays NaN.

Token t of row indices[a] is allowed if bit t % 32 of masks[a, t // 32] is set.

Shapes: logits [S, V], masks [A, W] int32, 32 W >= V, indices [A] int64, no row twice
Mutates: logits
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.token_mask.cases import cases, perf_cases
from dovetail_kernels.token_mask.native import NATIVE
from dovetail_kernels.token_mask.reference import reference

OP = Op(
    name="token_mask",
    summary="forbid tokens by a mask of bits",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE, triton_implementation("token_mask")],
)
