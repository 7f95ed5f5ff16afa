"""route: which experts compute a token, and with what weights, by a router's scores.

likely[t] = softmax(scores[t]) or, one by one, sigmoid(scores[t]); chosen_by = likely + bias.
experts[t] are the A largest of chosen_by, the largest first; weights[t] are their likely, with
`renormalizes` divided by the greater of their sum and `least_sum`, times `factor`. Experts are in
`num_groups` groups of neighbours. If `num_kept_groups` is smaller, only experts in that many best
groups may be picked; a group's score is its best member ("best"), or the sum of its two best
("two_best"). Of equal experts, and of equal groups, the lower goes first.

Shapes: scores [T, X], bias [X] float32 or None, weights [T, A] float32, experts [T, A] int64
Mutates: weights, experts
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op
from dovetail_kernels.route.cases import cases, perf_cases, small_cases
from dovetail_kernels.route.native import NATIVE
from dovetail_kernels.route.reference import reference

OP = Op(
    name="route",
    summary="the experts of each token and their weights",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("route")],
)
