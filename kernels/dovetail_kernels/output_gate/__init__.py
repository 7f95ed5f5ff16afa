"""output_gate: x sigmoid(gate), computed in float32: what opens the outputs of attention.

Shapes: x, gate [T, D] -> [T, D] in x's dtype
Source: Qiu et al., "Gated Attention for Large Language Models", 2025 (arXiv 2505.06708)
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.output_gate.cases import cases, perf_cases
from dovetail_kernels.output_gate.native import NATIVE
from dovetail_kernels.output_gate.reference import reference

OP = Op(
    name="output_gate",
    summary="outputs times the sigmoid of their gates",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE, triton_implementation("output_gate")],
)
