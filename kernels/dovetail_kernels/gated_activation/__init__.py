"""gated_activation: act(first half) * second half, computed in float32.

Shapes: x [T, 2 F] -> [T, F] in x's dtype; `activation` is "silu", "gelu" or "gelu_tanh"
Source: Shazeer, "GLU variants improve transformer", 2020
"""

from dovetail_kernels.gated_activation.cases import cases
from dovetail_kernels.gated_activation.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="gated_activation",
    summary="activation of one half times the other",
    reference=reference,
    cases=cases,
)
