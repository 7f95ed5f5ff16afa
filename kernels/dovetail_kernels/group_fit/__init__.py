"""group_fit: the grid of every group of a matrix's weights that has the least weighted error.

A weight becomes value * scale + offset, or (value - half) * scale without offsets, where value is
below 2 ^ bits. Scales and offsets are whole codes times the step of a run of groups. For each of
several candidate ranges the levels are rounded, and the scale and the offset that are then best are
the solution of least squares over the group; the candidate with the least error is coded, and so
are the neighbours of its code.

Shapes: weight [N, K] float32, bfloat16 or float16, importances [K] float32 or None for equal ones
-> values [N, K] uint8, scales [N, groups] int8, steps [N, runs] float32, offsets and offset_steps
like scales and steps, or None
Source: the method is described in https://github.com/ggml-org/llama.cpp/pull/1684 and, for
importances, in https://github.com/ggml-org/llama.cpp/pull/4861
"""

from dovetail_kernels.group_fit.cases import cases, perf_cases
from dovetail_kernels.group_fit.native import NATIVE
from dovetail_kernels.group_fit.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="group_fit",
    summary="the best grid of each group of weights",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
