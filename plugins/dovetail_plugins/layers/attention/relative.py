"""Attention with biases by distance that each query mixes for itself.

For a query t and a key s, d = t - s tokens back, with r_t the query's small vector of R numbers:

    score = scale q_t . k_s + r_t . P[:, d]              # the bias is 0 from `extent` tokens on

P [R, extent] is learned, one for all heads. A query may have one more score, its sink, which takes
weight and adds nothing. Queries far into a row may be multiplied, bias included, by

    tau = 1 + alpha log(max(1, (t + 1) / floor))

No backend adds biases of that kind, so the keys and values of all heads are cached side by side as
one latent of a token, and torch attends to them, row by row.
Source: Thinking Machines Lab, Inkling, 2026, as transformers has it; Nakanishi, Scalable-Softmax Is
Superior for Attention, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent_rows import MAX_SCORES, read_latents, write_latents
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kept import CachingLayer
from dovetail.layers.opaque import CompilerBoundary
from dovetail_kernels.cpu.program import refuse_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScale:
    """The factor of queries far into a row: 1 up to `floor` tokens."""

    floor: int
    alpha: float

    def factors(self, positions: torch.Tensor) -> torch.Tensor:
        """Return tau. Shapes: positions [T] -> [T] float32"""
        share = (positions + 1).float() / self.floor
        return 1 + self.alpha * share.clamp(min=1).log()


class DistanceBank(nn.Module):
    """P, on every rank. Shapes: proj [R, extent]"""

    def __init__(self, context: BuildContext, size: int, extent: int) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(size, extent, dtype=dtype, device=context.device)
        self.proj = nn.Parameter(empty, requires_grad=False)


def distance_biases(
    mixes: torch.Tensor, bank: torch.Tensor, distances: torch.Tensor
) -> torch.Tensor:
    """Return the biases of scores. Shapes: mixes [T, H, R], bank [R, extent], distances [T, S] ->
    [T, H, S] float32"""
    extent = bank.shape[1]
    by_distance = mixes.float() @ bank.float()
    at = distances.clamp(0, extent - 1).unsqueeze(1).expand(-1, mixes.shape[1], -1)
    is_near = (distances >= 0) & (distances < extent)
    return by_distance.gather(-1, at).masked_fill(~is_near.unsqueeze(1), 0.0)


class RelativeAttention(CachingLayer):
    """The attention of one layer, with its cache of keys and values."""

    def __init__(self, name: str, spec: AttentionSpec, log_scale: LogScale | None = None) -> None:
        super().__init__(name)
        self.spec, self.log_scale = spec, log_scale
        self.size = 2 * spec.num_kv_heads * spec.head_size
        self._opaque = CompilerBoundary(self._attend)

    def kept(self, run: RunSpec) -> LatentLayer:
        """Return the cached keys and values of this rank's heads."""
        return LatentLayer(
            name=self.name,
            size=self.size,
            dtype=run.kv_dtype,
            window_tokens=self.spec.window_tokens,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mixes: torch.Tensor,
        bank: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values.

        Shapes: q [T, H*D], k and v [T, K*D], mixes [T, H*R], bank [R, extent], sinks [T, H] ->
        [T, H*D]
        """
        width = self.spec.num_heads * self.spec.head_size
        return self._opaque(q, k, v, mixes, bank, sinks, size=width)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mixes: torch.Tensor,
        bank: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        refuse_recording("torch attends to each row by itself")
        context, heads = forward_context(), self.spec.num_heads
        layout = context.backend.layout_of(context.prepared[self.name])
        cache = context.caches[self.name]
        assert isinstance(cache, torch.Tensor)
        write_latents(torch.cat([k, v], dim=-1), cache, layout.slots)
        queries, mixed = (x.unflatten(-1, (heads, -1)) for x in (q, mixes))
        out = torch.zeros_like(queries)
        for row, (start, end) in enumerate(pairwise(layout.query_start_host)):
            shift = layout.seq_lens_host[row] - end
            step = max(1, MAX_SCORES // (heads * layout.seq_lens_host[row] or 1))
            for first in range(start, end, step):
                part = slice(first, min(first + step, end))
                own = None if sinks is None else sinks[part]
                at = torch.arange(part.start, part.stop, device=q.device) + shift
                low = self._first_seen(first + shift)
                both = read_latents(cache, layout, row, part.stop + shift, low)
                seen = torch.arange(low, part.stop + shift, device=q.device)
                biases = distance_biases(mixed[part], bank, at.unsqueeze(1) - seen)
                out[part] = self._attended(queries[part], both.float(), biases, own, at, seen)
        return out.flatten(1)

    def _first_seen(self, position: int) -> int:
        window = self.spec.window_tokens
        return 0 if window is None else max(0, position - window + 1)

    def _attended(
        self,
        q: torch.Tensor,
        both: torch.Tensor,
        biases: torch.Tensor,
        sinks: torch.Tensor | None,
        at: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """Return the attended values of a row's queries at positions `at`, of keys and values at
        positions `seen`. Shapes: q [T, H, D], both [S, 2 K D], biases [T, H, S], sinks [T, H],
        at [T], seen [S] -> [T, H, D]"""
        spec, window = self.spec, self.spec.window_tokens
        k, v = both.unflatten(-1, (2, spec.num_kv_heads, -1)).unbind(1)
        grouped = q.float().unflatten(1, (spec.num_kv_heads, -1))
        scores = torch.einsum("tkgd,skd->tkgs", grouped, k).flatten(1, 2) * spec.scale + biases
        if self.log_scale is not None:
            scores = scores * self.log_scale.factors(at)[:, None, None]
        is_hidden = seen > at.unsqueeze(1)
        if window is not None:
            is_hidden |= seen <= at.unsqueeze(1) - window
        scores = scores.masked_fill(is_hidden.unsqueeze(1), -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.float().unsqueeze(-1)], dim=-1)
        weights = scores.softmax(dim=-1)[..., : len(seen)]
        weights = weights.unflatten(1, (spec.num_kv_heads, -1))
        return torch.einsum("tkgs,skd->tkgd", weights, v).flatten(1, 2).to(q.dtype)
