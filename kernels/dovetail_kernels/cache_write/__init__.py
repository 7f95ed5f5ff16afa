"""cache_write: store the keys and values of a step's tokens into their slots of the paged cache.

cache[0].view(N * P, K, D)[slots] = k, and cache[1] likewise with v, in the cache's dtype.

Shapes: k and v [T, K, D], cache [2, N, P, K, D], slots [T] int64, all different
Mutates: cache
"""

from dovetail_kernels.cache_write.cases import cases
from dovetail_kernels.cache_write.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="cache_write",
    summary="keys and values into their slots",
    reference=reference,
    cases=cases,
)
