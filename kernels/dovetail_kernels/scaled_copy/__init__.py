"""scaled_copy: many matrices copied in one call, target = scale * source, each in its target's
dtype; returns the number of the first one with a non-finite result, -1 for none.

Sources and targets may have any strides, so that a copy may exchange axes or fill a part of a
larger matrix; targets do not overlap. Products are of float32, rounded once. A matrix whose result
is not finite may be left half copied, and so may those after it.

Shapes: sources and targets C matrices [A, B] each, scales [C] -> [] int64
"""

from dovetail_kernels.op import Op
from dovetail_kernels.scaled_copy.cases import cases, perf_cases
from dovetail_kernels.scaled_copy.native import NATIVE
from dovetail_kernels.scaled_copy.reference import reference

OP = Op(
    name="scaled_copy",
    summary="many small matrices copied, scaled, turned and seen to be finite",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
"""A case's dtype is that of the targets."""
