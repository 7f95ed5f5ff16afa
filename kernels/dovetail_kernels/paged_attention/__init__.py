"""paged_attention: each query attends to the keys of its row, found through a block table.

A row of L cached tokens, the last n of them queried, has queries at positions p = L - n .. L - 1.
Query p sees keys j <= p (all j < L when not causal) with j > p - window and j < p + window, or,
when causal, only keys of its own chunk: j // chunk = p // chunk. With s = scale q.k (+ bias at M -
1 + j - p of the head, - alibi_slope |j - p| of the head), and s = c tanh(s / c) under a soft cap c:
out = sum_j softmax(s)_j v_j; a head's sink logit adds exp(sink) to the softmax's denominator.

The cache's numbers may be narrower than q's; int8 ones come with a scale per token and kv head,
8-bit floats with one of all keys and one of all values: a value is number times scale. A scale with
its sign bit set says that its key is a difference from the first key of its 16. With a cache in
bfloat16 or 8-bit floats, `may_round` lets an implementation round q and softmax_j to bfloat16.

Shapes: q [T, H, D], cache [2, N, P, K, D], scales [2, N, P, K] or None, block_table [R, B] int32,
query_start [R + 1] int32, seq_lens [R] int32, sinks [H], alibi_slopes [H], bias [H, 2 M - 1]
float32 with M > any |j - p| -> [T, H, D] in q's dtype
Source: Kwon et al., "Efficient memory management for LLM serving with PagedAttention", 2023
"""

from dovetail_kernels.gpu import triton_implementation
from dovetail_kernels.op import Arguments, Op
from dovetail_kernels.paged_attention.cases import cases, perf_cases, small_cases
from dovetail_kernels.paged_attention.native import NATIVE
from dovetail_kernels.paged_attention.reference import reference


def _prepare_triton(arguments: Arguments) -> Arguments:
    from dovetail_kernels.paged_attention.triton import prepare

    return prepare(arguments)


def _why_not_triton(arguments: Arguments) -> str | None:
    is_biased = arguments.get("bias") is not None
    return "biases by relative position are not supported" if is_biased else None


IN_TRITON = triton_implementation(
    "paged_attention", prepare=_prepare_triton, why_not=_why_not_triton
)
OP = Op(
    name="paged_attention",
    summary="attention over keys in blocks",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    small_cases=small_cases,
    implementations=[NATIVE, IN_TRITON],
)
