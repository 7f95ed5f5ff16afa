"""nan_check: whether values of a tensor are not numbers (NaN), read once at the speed of memory.

The values are given as integers, with that of infinity: a NaN without its sign is greater (IEEE
754, 6.2.1).

Shapes: bits [N] int32 or int16, contiguous, infinity: int -> [] bool
"""

from dovetail_kernels.nan_check.cases import cases, perf_cases
from dovetail_kernels.nan_check.native import NATIVE
from dovetail_kernels.nan_check.reference import reference
from dovetail_kernels.op import Op

__all__ = ["OP"]

OP = Op(
    name="nan_check",
    summary="whether values are not numbers",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
