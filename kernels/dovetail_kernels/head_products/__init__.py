"""head_products: each head's numbers times the head's own matrix.

out[t, h] = x[t, h, : I] W[h], followed by x[t, h, I :] unchanged. Latent attention does that to
queries (their rotary part stays) and to attended latents. On a GPU torch's batched products do it.

Shapes: x [T, H, I + S], weight [H, I, O] -> [T, H, O + S]
Source: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1.2
"""

from dovetail_kernels.head_products.cases import cases, perf_cases
from dovetail_kernels.head_products.native import NATIVE
from dovetail_kernels.head_products.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="head_products",
    summary="each head times its own matrix",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
