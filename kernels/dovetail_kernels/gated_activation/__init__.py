"""gated_activation: act(first half) * second half, computed in float32.

Shapes: x [T, 2 F] -> [T, F] in x's dtype; `activation` is one that gemm ends in
Source: Shazeer, "GLU variants improve transformer", 2020
"""

from dovetail_kernels.gated_activation.cases import cases, perf_cases
from dovetail_kernels.gated_activation.native import NATIVE
from dovetail_kernels.gated_activation.reference import reference
from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op

OP = Op(
    name="gated_activation",
    summary="activation of one half times the other",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE, triton_implementation("gated_activation")],
)
