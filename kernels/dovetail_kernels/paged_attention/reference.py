"""The definition of paged_attention in torch: one row after the other, in float32."""

from __future__ import annotations

import torch

from dovetail_kernels.paged_attention.integers import widened


def reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    is_causal: bool = True,
    sinks: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    may_round: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended values.

    `may_round` lets other implementations round queries and softmax weights to bfloat16 if the
    cache's numbers are bfloat16; the definition does not. `k_scale` and `v_scale` multiply all that
    the cache holds. Shapes: q [T, H, D], cache [2, N, P, K, D], scales [2, N, P, K], bias
    [H, 2 M - 1], alibi_slopes [H] -> [T, H, D]
    """
    if scales is not None:
        cache = widened(cache, scales)
    if (k_scale, v_scale) != (1.0, 1.0):
        cache = torch.stack([cache[0].float() * k_scale, cache[1].float() * v_scale])
    out = torch.empty_like(q)
    starts = query_start.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        first, last = starts[row], starts[row + 1]
        keys, values = _row_cache(cache, block_table[row], length)
        visible = _visible(last - first, length, window, chunk, is_causal, q.device)
        added = _added(bias, alibi_slopes, last - first, length, q.device)
        out[first:last] = _attend(
            q[first:last], keys, values, visible, scale, soft_cap, sinks, added
        ).to(q.dtype)
    return out


def _row_cache(
    cache: torch.Tensor, blocks: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row's keys and values in order. Shapes: [length, K, D] each, float32"""
    num_blocks = -(-length // cache.shape[2])
    chosen = blocks[:num_blocks].tolist()
    k, v = (torch.cat([half[block] for block in chosen])[:length].float() for half in cache)
    return k, v


def _visible(
    queries: int,
    length: int,
    window: int | None,
    chunk: int | None,
    is_causal: bool,
    device: torch.device,
) -> torch.Tensor:
    """Return which keys each query sees. Shapes: [queries, length] bool"""
    p = torch.arange(length - queries, length, device=device).unsqueeze(1)
    j = torch.arange(length, device=device).unsqueeze(0)
    visible = (j <= p) if is_causal else torch.ones_like(j <= p)
    if chunk is not None:
        visible &= j // chunk == p // chunk
    if window is None:
        return visible
    return visible & (j > p - window) & (j < p + window)


def _added(
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    queries: int,
    length: int,
    device: torch.device,
) -> torch.Tensor | float:
    """Return the score bias of each query and key. Shapes: [H, queries, length]"""
    p = torch.arange(length - queries, length, device=device).unsqueeze(1)
    j = torch.arange(length, device=device).unsqueeze(0)
    added = 0.0 if bias is None else bias.float()[:, bias.shape[1] // 2 + j - p]
    return added if slopes is None else added - slopes.float().view(-1, 1, 1) * (j - p).abs()


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    added: torch.Tensor | float,
) -> torch.Tensor:
    """Return softmax(scores) v. Shapes: q [n, H, D], k and v [L, K, D], visible [n, L], added
    [H, n, L]"""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,lhd->hql", q.float(), k) * scale + added
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~visible, -torch.inf)
    norm = scores.logsumexp(dim=-1, keepdim=True)
    if sinks is not None:
        norm = torch.logaddexp(norm, sinks.float().view(-1, 1, 1))
    return torch.einsum("hql,lhd->qhd", (scores - norm).exp(), v)
