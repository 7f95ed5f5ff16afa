"""gemm: out = act(x W^T + bias) + residual, or act(gate) * up when W holds gate and up.

Shapes: x [M, K] float32, W [N, K] in one of `FORMATS`, bias [N] or [M, N] contiguous (one for each
row), residual [M, N] -> [M, N] float32 (gated: W [2F, K], gate rows first, bias as wide -> [M, F],
no residual)
"""

from dovetail_kernels.gemm.cases import cases, perf_cases, small_cases
from dovetail_kernels.gemm.gpu import prepare
from dovetail_kernels.gemm.native import NATIVE
from dovetail_kernels.gemm.reference import reference
from dovetail_kernels.gemm.weight import FORMATS, Weight
from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op

__all__ = ["FORMATS", "OP", "Weight"]

OP = Op(
    name="gemm",
    summary="matrix product with a packed weight",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("gemm", prepare=prepare)],
)
"""The one matrix product of dense layers."""
