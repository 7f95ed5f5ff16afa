"""layer_norm: (x - mean) / sqrt(variance + eps) * (weight + offset) + bias, computed in float32.

With a `delta`, x becomes x + delta first (and keeps it). Weight and bias may be left out; without a
weight the offset counts for nothing.

Shapes: x and delta [T, E], weight and bias [E] -> [T, E] in x's dtype
Source: Ba, Kiros, Hinton, "Layer normalization", 2016
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.layer_norm.cases import cases, perf_cases, small_cases
from dovetail_kernels.layer_norm.native import NATIVE
from dovetail_kernels.layer_norm.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="layer_norm",
    summary="mean and variance norm",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("layer_norm")],
)
