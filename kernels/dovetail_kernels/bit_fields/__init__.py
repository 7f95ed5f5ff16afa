"""bit_fields: small integers that blocks of bytes hold as fields of bits, one byte each.

A value is the sum of its parts: plane by plane, a field of some bits, shifted to its place.
Quantized files store most bits of a value in one plane and the rest in another.

Shapes: blocks [n, S] uint8 -> [n, B] uint8
Source: the block structs of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from dovetail_kernels.bit_fields.cases import cases, perf_cases
from dovetail_kernels.bit_fields.native import NATIVE
from dovetail_kernels.bit_fields.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="bit_fields",
    summary="small integers in the bits of blocks",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
