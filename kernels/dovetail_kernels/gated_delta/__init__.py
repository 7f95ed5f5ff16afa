"""gated_delta: the gated delta rule, by which a head's state forgets, and learns the value of a
key.

q, k = q / |q|, k / |k| (1e-6 inside the root), q times scale S = exp(-exp(a_log) softplus(decay_in
+ dt_bias)) S S = S + k (outer) beta_scale sigmoid(beta_in) (v - k S), out = q S

With decay_in and dt_bias for each channel of a key (Kimi delta attention), each of the D lines of S
decays by its own. With a least_log that is not 0 a decay is exp(least_log sigmoid(exp(a_log)
(decay_in + dt_bias))), never less than exp(least_log) (Ling 3). A beta_scale of 2 lets a state turn
a key's value around (OLMo Hybrid).

H / K consecutive value heads share a key head. Rows of q, k, v, decay_in and beta_in may be
strided, as parts of one wider matrix. dovetail_kernels.states says which states a row begins with
and stores. A 16-bit state is rounded when it is stored; the definition and the native kernel round
it after every token.

Shapes: q and k [T, K, D], v [T, H, V], decay_in [T, H] or [T, H, D], beta_in [T, H], a_log [H] and
dt_bias [H] or [H, D] float32, state [N, H, D, V] -> [T, H, V] in v's dtype
Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024 (arXiv
2412.06464), as Qwen3-Next has it; Kimi Team, "Kimi Linear", 2025 (arXiv 2510.26692); Grazzi et al.,
"Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues", 2024 (arXiv 2411.12537)
"""

from dovetail_kernels.gated_delta.cases import cases, perf_cases, small_cases
from dovetail_kernels.gated_delta.chunked import CHUNKED
from dovetail_kernels.gated_delta.native import NATIVE
from dovetail_kernels.gated_delta.reference import reference
from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Op

OP = Op(
    name="gated_delta",
    summary="the gated delta rule over the tokens of each row",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("gated_delta"), CHUNKED],
)
