"""k_scales: the scales and offsets of GGUF's K blocks that have both (Q4_K, Q5_K).

A block of S bytes begins with two float16 numbers, the steps of its scales and of its offsets, and
twelve bytes that hold eight codes of each in six bits: of the first four codes in a byte each, of
the last four their low bits in the halves of a byte and their high bits above the first ones. The
offsets are subtracted, so their step is returned negated.

Shapes: blocks [n, S] uint8 -> codes [n, 8] int8, steps [n, 1] float16, offset codes [n, 8] int8,
offset steps [n, 1] float16
Source: block_q4_K and get_scale_min_k4 of
https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c
"""

from dovetail_kernels.k_scales.cases import cases, perf_cases
from dovetail_kernels.k_scales.native import NATIVE
from dovetail_kernels.k_scales.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="k_scales",
    summary="scales and offsets of K blocks",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
