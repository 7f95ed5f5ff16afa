"""moe: each token's picked experts, gated or plain, their outputs weighted and added.

out[t] = sum over a of weights[t, a] * down[e] (act(gate) * up), [gate, up] = gate_up[e] x[t],
e = experts[t, a]; -1 is an expert of another rank, which adds nothing. Experts that are not gated
have act(gate_up[e] x[t]) instead. Each matrix may have a bias, which is added before what follows
it. With g = min(gate, limit), u = up within +- limit, "swiglu_oai" is g sigmoid(1.702 g) (u + 1),
and "silu_clamped" is g sigmoid(g) u.

Shapes: x [T, E], gate_up X matrices [2F, E] (gate rows first; without a gate [F, E]), down X of
[E, F], weights [T, A] float32, experts [T, A] int64, biases [X, 2F] and [X, E] -> [T, E] in x's
dtype
Source of swiglu_oai: OpenAI, gpt-oss-120b and gpt-oss-20b model card, 2025
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.moe.cases import cases, perf_cases, small_cases
from dovetail_kernels.moe.gpu import prepare
from dovetail_kernels.moe.native import NATIVE
from dovetail_kernels.moe.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="moe",
    summary="mixture of experts: sorted tokens, grouped products, weighted sum",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("moe", prepare=prepare)],
)
