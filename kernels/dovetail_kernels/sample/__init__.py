"""sample: one token per row of logits, by temperature, top-k, top-p, min-p and a seed.

Row by row: x = (logit - best) / temperature, w(x) = round(2^40 e^x). Candidates are the tokens with
x >= log(min_p), of them the top_k largest, of them the fewest largest whose w reach top_p of the
sum; each bound includes all tokens that tie with its last one. The sampled token is the first, in
the order of ids, at which the sum of the candidates' w exceeds u times the whole; u is a hash of
seed and position. Greedy rows take the first best token.
Shapes: logits [S, V] float32, everything else [S] -> [S] int64

w are whole numbers and their sums exact, so no order, batch, thread or instruction set changes a
token (`definition.py`). The native kernel also takes penalties and gives logprobs.
"""

import torch

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.sample.cases import cases, perf_cases, small_cases
from dovetail_kernels.sample.device import prepare
from dovetail_kernels.sample.native import NATIVE
from dovetail_kernels.sample.reference import reference

OP = Op(
    name="sample",
    summary="one token per row of logits",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[
        NATIVE,
        triton_implementation("sample", dtypes=(torch.float32,), prepare=prepare),
    ],
)
