"""rms_norm: x / sqrt(mean(x^2) + eps) * (weight + offset), computed in float32.

With a `delta`, x becomes x + delta first (and keeps it); with a `residual`, that is added to the
result. Without a weight the norm is not scaled.

Shapes: x, delta, residual [T, E], weight [E] -> [T, E] in x's dtype
Source: Zhang, Sennrich, "Root mean square layer normalization", 2019
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.rms_norm.cases import cases, perf_cases, small_cases
from dovetail_kernels.rms_norm.native import NATIVE
from dovetail_kernels.rms_norm.reference import reference

OP = Op(
    name="rms_norm",
    summary="root mean square norm",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("rms_norm")],
)
