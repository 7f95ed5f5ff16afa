"""Attention in which the tokens of one image also see later tokens of the image.

Earlier tokens come from the cache as usual. Later tokens of the same image are part of the step,
because such images are computed whole (`ScheduleSpec.keeps_parts_whole`). Attention to them is
computed here, and both results are joined by their log-sum-exps.

Source: Gemma Team, Gemma 3, 2025 (images); Dao et al., FlashAttention, 2022 (how parts are joined).
"""

from __future__ import annotations

import torch

from dovetail.interfaces.attention import AttentionCall, AttentionSpec
from dovetail.layers.attention import Attention
from dovetail.layers.context import forward_context, step_media
from dovetail.parallel.context import joined


class MediaAttention(Attention):
    """Attention over text, and over images whose tokens see each other in both directions."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values. Shapes: as Attention has them; no sinks, no bias"""
        media = step_media()
        if media is None or not media.spans:
            return super().forward(q, k, v, sinks, bias)
        spec, context = self.spec, forward_context()
        cache = context.caches[self.name]
        assert isinstance(cache, torch.Tensor)
        q = q.unflatten(-1, (spec.num_heads, spec.head_size))
        k = k.unflatten(-1, (spec.num_kv_heads, spec.head_size))
        v = v.unflatten(-1, (spec.num_kv_heads, spec.head_size))
        prepared = context.prepared[self.name]
        call = AttentionCall(spec=spec, q=q, k=k, v=v, cache=cache, prepared=prepared)
        out, sums = context.backend.forward_lse(call)
        out = out.clone()
        for start, count in media.spans:
            if count == 1:
                continue
            at = slice(start, start + count - 1)  # the last one has no later tokens
            mine, own = attended_behind(spec, q[start : start + count], *_of(k, v, start, count))
            both = torch.stack([out[at], mine[:-1].to(out.dtype)])
            out[at] = joined(both, torch.stack([sums[at], own[:-1]]), None)
        return out.flatten(-2)


def _of(
    k: torch.Tensor, v: torch.Tensor, start: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return k[start : start + count], v[start : start + count]


def attended_behind(
    spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention to only the keys after each query, and the log-sum-exps of its scores; the
    last query has no such keys: -inf and a meaningless output.

    Shapes: q [n, H, D], k and v [n, K, D] -> [n, H, D], [n, H] float32
    """
    count, groups = len(q), spec.num_heads // spec.num_kv_heads
    keys, values = (x.float().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float() * spec.scale, keys)
    if spec.soft_cap:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    seen = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(~seen, -torch.inf)
    sums = scores.logsumexp(dim=-1)
    shares = (scores - sums.unsqueeze(-1)).exp()
    return torch.einsum("hqk,khd->qhd", shares, values), sums.T.contiguous()
