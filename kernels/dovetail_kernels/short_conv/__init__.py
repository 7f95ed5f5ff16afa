"""short_conv: a causal convolution of each channel over its row's last W inputs, with state.

out[t, c] = act(bias[c] + sum over i of weight[c, i] x[t - W + 1 + i, c]), computed in float32; x
before a row's first token is zero. The state holds the last W - 1 inputs, the oldest first. Inputs
before a token are rounded to the state's dtype, so that results are the same however a row is cut
into steps.

Shapes: x [T, C], weight [C, W] with W from 2 to 8, bias [C], state [N, C, W - 1]; the rows of the
step as in dovetail_kernels.states -> [T, C] in x's dtype. Mutates: state
Source: the layers before selective scans (Gu, Dao, "Mamba", 2023) and in LFM2 (2025)
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.short_conv.cases import cases, perf_cases, small_cases
from dovetail_kernels.short_conv.native import NATIVE
from dovetail_kernels.short_conv.reference import reference

OP = Op(
    name="short_conv",
    summary="causal convolution over a few inputs, with kept states",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("short_conv")],
)
