"""logprobs: a token's probability and rank, and the n likeliest tokens, for rows of logits.

It returns whole numbers, from which the host makes logarithms: a row's sum of weights (see
`sample`), the rank of its token (1: no logit is larger), the bits of the row's largest logit and of
the token's own, the ids of the n largest logits and their bits. Of equal logits the lower id comes
first. A row with a NaN has one as its largest logit; its other numbers say nothing.

Shapes: logits [R, V] of any float dtype, tokens [S] int64, rows [S] int64 (the row of each token;
None: row i is token i's), num_top n -> [S, 4 + 2 n] int64
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.logprobs.cases import cases, perf_cases, small_cases
from dovetail_kernels.logprobs.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="logprobs",
    summary="how likely tokens are, their ranks, and the likeliest tokens",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[triton_implementation("logprobs")],
)
