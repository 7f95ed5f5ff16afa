"""latent_attention: each query attends to its row's latents, which are key and value of all heads.

A row of S cached tokens, the last n of them queried, has queries at positions p = S - n .. S - 1,
of H heads each. With s_j = scale q.c_j for j <= p: out = sum_j softmax(s)_j c_j[: L]. The cache's
numbers may be narrower than q's; with a bfloat16 cache, `may_round` lets an implementation round q
and the softmax's weights to it. Blocks may be strided in memory; each block is contiguous. With
picks, j runs only over these positions (index_picks); a query at p has the first min(p + 1, K) of
them. With sinks, a head's softmax has one more score, its sink, to which no latent belongs.

Shapes: q [T, H, L + R], cache [N, P, L + R], block_table [R, B] int32, query_start [R + 1] int32,
seq_lens [R] int32, picks [T, K] int32, ascending, padded with -1, sinks [H] float32 -> [T, H, L] in
q's dtype
Source: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.latent_attention.cases import cases, perf_cases, small_cases
from dovetail_kernels.latent_attention.native import NATIVE
from dovetail_kernels.latent_attention.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="latent_attention",
    summary="attention over latents in blocks",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, triton_implementation("latent_attention")],
)
