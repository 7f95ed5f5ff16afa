"""cache_write: store the keys and values of a step's tokens into their slots of the paged cache.

cache[0][slots // P, slots % P] = k, and cache[1] likewise with v, in the cache's dtype. A cache of
8-bit floats holds k / k_scale and v / v_scale, clamped to its range. One of int8 holds round(x / s)
with s = max |x| / 127 of each token and head, and s in `scales`. With fewer `bits` of keys and
values it holds the numbers that `paged_attention/integers.py` describes.

Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T] int64, all different, scales
[2, N, P, K] float32 with int8, else None; the axes of halves and blocks may have any stride
Mutates: cache, scales
"""

from dovetail_kernels.cache_write.cases import cases, perf_cases, small_cases
from dovetail_kernels.cache_write.reference import reference
from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op

OP = Op(
    name="cache_write",
    summary="keys and values into their slots",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[triton_implementation("cache_write")],
)
