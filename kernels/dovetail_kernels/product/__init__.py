"""product: x * act(gate) * factors, the last two optional, in float32.

Shapes: x, gate [T, C], factors [C] -> [T, C] in x's dtype; `activation` is one that gemm ends in
Source: Gu and Dao, Mamba, 2023 (the gate after a scan); Yang et al., Tensor Programs V, 2022 (the
multipliers that muP gives to activations)
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.product.cases import cases, perf_cases
from dovetail_kernels.product.native import NATIVE
from dovetail_kernels.product.reference import reference

OP = Op(
    name="product",
    summary="product with an activated gate and a factor of each channel",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE, triton_implementation("product")],
)
