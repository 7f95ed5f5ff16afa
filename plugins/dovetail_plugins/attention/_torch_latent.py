"""Paged attention over latents in torch operators: write, gather a row's latents, attend.

All heads of a token are treated as queries of one head, so nothing is repeated. Shape letters as in
`interfaces.attention`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dovetail.interfaces.attention import AttentionSpec, IndexCall, LatentCall, LatentSpec
from dovetail.layers.attention.latent_rows import write_latents
from dovetail_kernels.index_picks.reference import reference as index_picks
from dovetail_plugins.attention._torch_paged import GATHER_BYTES, MAX_SCORES, PreparedGroup


def forward_latent(call: LatentCall) -> torch.Tensor:
    """Run `AttentionBackend.forward_latent`. Mutates: cache"""
    spec, q, cache = call.spec, call.q, call.cache
    prepared: PreparedGroup = call.prepared
    write_latents(call.latent, cache, prepared.layout.slots)
    out = q.new_empty(*q.shape[:2], spec.latent_size)
    max_tokens = max(1, GATHER_BYTES // (spec.size * cache.element_size()))
    plain = AttentionSpec(
        num_heads=spec.num_heads, num_kv_heads=1, head_size=spec.size, scale=spec.scale
    )
    for chunk in prepared.decode_chunks(plain, max_tokens) if prepared.decode_rows else ():
        tokens = slice(None) if chunk.tokens is None else chunk.tokens
        seen = _read(cache, chunk.slots, q.dtype).unflatten(0, (-1, chunk.num_keys))
        mask = None if chunk.mask is None else chunk.mask.squeeze(1)
        out[tokens] = _attend(spec, q[tokens], seen, mask, call.sinks)
    for row in prepared.prefills:
        seen = _read(cache, prepared.row_slots(row.row, 0, row.end), q.dtype)
        step = max(1, MAX_SCORES // (spec.num_heads * row.end))
        for start in range(row.start, row.end, step):
            end = min(start + step, row.end)
            first = row.first_token + start - row.start
            part = slice(first, first + end - start)
            own = torch.arange(start, end, device=q.device).unsqueeze(1)
            mask = torch.arange(end, device=q.device) <= own
            mask = mask.repeat_interleave(spec.num_heads, dim=0)
            queries = q[part].flatten(0, 1).unsqueeze(0)
            found = _attend(spec, queries, seen[None, :end], mask, call.sinks)
            out[part] = found.unflatten(1, (-1, spec.num_heads)).squeeze(0)
    return out


def pick(call: IndexCall) -> torch.Tensor:
    """Run `AttentionBackend.pick`."""
    layout = call.prepared.layout
    rows = (layout.block_table, layout.query_start, layout.seq_lens)
    return index_picks(call.q, call.weights, call.keys, *rows, call.spec.num_picked)


def forward_picked(call: LatentCall) -> torch.Tensor:
    """Run `AttentionBackend.forward_picked`. Mutates: cache"""
    spec, q, cache, picks = call.spec, call.q, call.cache, call.picks
    assert picks is not None
    layout, size = call.prepared.layout, cache.shape[1]
    write_latents(call.latent, cache, layout.slots)
    counts = layout.query_start.diff()
    rows = torch.arange(layout.num_rows, device=q.device).repeat_interleave(counts)
    out = q.new_empty(*q.shape[:2], spec.latent_size)
    step = max(1, GATHER_BYTES // (picks.shape[1] * spec.size * cache.element_size()))
    for start in range(0, len(q), step):
        part = slice(start, start + step)
        at = picks[part].clamp(min=0).long()
        blocks = layout.block_table[rows[part].unsqueeze(1), at // size].long()
        seen = cache[blocks, at % size].to(q.dtype)
        out[part] = _attend(spec, q[part], seen, (picks[part] >= 0).unsqueeze(1), call.sinks)
    return out


def _read(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the latents at some slots. Shapes: cache [N, P, L + R], slots [S] -> [S, L + R]"""
    size = cache.shape[1]
    return cache[slots // size, slots % size].to(dtype)


def _attend(
    spec: LatentSpec,
    q: torch.Tensor,
    latents: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attended latents. Shapes: q [B, M, L + R], M tokens times heads, latents
    [B, S, L + R], mask that spreads to [B, M, S], True if a query sees it, sinks [H] -> [B, M, L]
    """
    scores = torch.bmm(q * spec.scale, latents.transpose(1, 2)).float()
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)
    if sinks is not None:
        column = sinks.float().repeat(scores.shape[1] // len(sinks)).view(1, -1, 1)
        scores = torch.cat([scores, column.expand(len(scores), -1, 1)], dim=-1)
        latents = F.pad(latents, (0, 0, 0, 1))  # of a sink: zero
    return torch.bmm(scores.softmax(dim=-1).to(q.dtype), latents[..., : spec.latent_size])
