"""ReferenceAttention: the definition of attention over a paged cache, one query at a time.

Slow and obvious on purpose: what faster backends are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionSpec,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail.interfaces.plugin import Info, NoOptions

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class ReferenceAttention(AttentionBackend):
    """softmax(scale * q.k) v with every rule of AttentionSpec spelled out."""

    info = Info(summary="attention by its definition, for tests", devices=("cpu",))
    capabilities = frozenset(
        {
            "window",
            "soft_cap",
            "sinks",
            "non_causal",
            "lse",
            "position_bias",
            "alibi",
            "chunk",
            "latent",
            "indexed",
            "shared",
        }
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options or NoOptions())

    def prepare(self, layout: BatchLayout) -> BatchLayout:
        """Return the layout itself."""
        return layout

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend, query by query.

        Mutates: cache
        """
        return self._attend_all(call)[0]

    forward_biased = forward_shared = forward

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v, then attend; also return the log-sum-exps of the scores. Mutates: cache"""
        return self._attend_all(call)

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Write the latents into the cache, then attend, query by query, to all or to those
        picked. Mutates: cache"""
        spec, q, cache, size = call.spec, call.q, call.cache, call.cache.shape[1]
        for slot, own in zip(call.prepared.slots.tolist(), call.latent, strict=True):
            cache[slot // size, slot % size] = own.to(cache.dtype)
        out = q.new_empty(*q.shape[:2], spec.latent_size)
        for token, seen in _seen(call.prepared):
            if call.picks is not None:
                picks = call.picks[token]
                seen = seen[picks[picks >= 0].long()]
            latents = cache[seen // size, seen % size].float()
            scores = q[token].float() @ latents.T * spec.scale
            if call.sinks is not None:
                scores = torch.cat([scores, call.sinks.float().unsqueeze(-1)], dim=-1)
            weights = scores.softmax(dim=-1)[:, : len(latents)]
            out[token] = (weights @ latents[:, : spec.latent_size]).to(q.dtype)
        return out

    forward_picked = forward_latent

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Return the positions of the highest scores, query by query, in float64."""
        spec, q, keys, size = call.spec, call.q, call.keys, call.keys.shape[1]
        picks = torch.full((len(q), spec.num_picked), -1, dtype=torch.int32)
        for token, slots in _seen(call.prepared):
            products = keys[slots // size, slots % size].double() @ q[token].double().T
            scores = (products.relu() @ call.weights[token].double()).float().tolist()
            order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
            found = sorted(order[: spec.num_picked])
            picks[token, : len(found)] = torch.tensor(found, dtype=torch.int32)
        return picks

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout itself."""
        layout: BatchLayout = prepared
        return layout

    def _attend_all(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attended values and the log-sum-exps; without k and v it writes nothing.
        Mutates: cache"""
        spec, q, k, v = call.spec, call.q, call.k, call.v
        layout, (keys, values) = call.prepared, call.cache
        if k is not None and v is not None:
            _store(keys, layout.slots, k / spec.k_scale)
            _store(values, layout.slots, v / spec.v_scale)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
        for row in range(layout.num_rows):
            seq_len = layout.seq_lens_host[row]
            slots = _slots(layout, row, seq_len)
            first, last = layout.query_start_host[row], layout.query_start_host[row + 1]
            for token in range(first, last):
                position = seq_len - (last - token)
                visible = _visible(spec, position, seq_len)
                seen = slots[visible]
                read = _read(keys, seen) * spec.k_scale, _read(values, seen) * spec.v_scale
                added = _added(spec, call.bias, visible - position)
                out[token], lse[token] = _attend(spec, q[token], *read, call.sinks, added)
        return out, lse


def _store(to: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> None:
    """Put numbers into slots; what an 8-bit float cannot hold becomes its largest. Mutates: to"""
    place = slots // to.shape[1], slots % to.shape[1]
    if to.dtype in FLOAT8:
        limit = torch.finfo(to.dtype).max
        to.view(torch.uint8)[place] = x.clamp(-limit, limit).to(to.dtype).view(torch.uint8)
    else:
        to[place] = x.to(to.dtype)


def _read(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return the numbers of some slots as floats; torch cannot index 8-bit ones."""
    place = slots // cache.shape[1], slots % cache.shape[1]
    if cache.dtype in FLOAT8:
        return cache.view(torch.uint8)[place].view(cache.dtype).float()
    return cache[place].float()


def _slots(layout: BatchLayout, row: int, seq_len: int) -> torch.Tensor:
    """Return the slot of each of the row's positions. Shapes: -> [seq_len]"""
    positions = torch.arange(seq_len)
    blocks = layout.block_table[row][positions // layout.block_tokens].long()
    return blocks * layout.block_tokens + positions % layout.block_tokens


def _visible(spec: AttentionSpec, position: int, seq_len: int) -> torch.Tensor:
    """Return the key positions that a query sees."""
    last = position if spec.is_causal else seq_len - 1
    if spec.chunk_tokens is not None:
        return torch.arange(position // spec.chunk_tokens * spec.chunk_tokens, last + 1)
    if spec.window_tokens is None:
        return torch.arange(last + 1)
    before, after = position - spec.window_tokens + 1, position + spec.window_tokens - 1
    return torch.arange(max(0, before), min(last, after) + 1)


def _added(
    spec: AttentionSpec, bias: torch.Tensor | None, distances: torch.Tensor
) -> torch.Tensor | float:
    """Return the score bias of keys at these distances after a query.

    Shapes: distances [S] -> [H, S]
    """
    added = 0.0 if bias is None else bias[:, bias.shape[1] // 2 + distances]
    if spec.alibi_slopes is None:
        return added
    return added - torch.tensor(spec.alibi_slopes).unsqueeze(1) * distances.abs()


def _attend(
    spec: AttentionSpec,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sinks: torch.Tensor | None,
    added: torch.Tensor | float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one query's values and the log-sum-exps of its scores, which no sink is part of.

    Shapes: q [H, D], keys and values [S, K, D] float32, added [H, S] -> [H, D], [H]
    """
    repeats = spec.num_heads // spec.num_kv_heads
    keys = keys.repeat_interleave(repeats, dim=1)
    values = values.repeat_interleave(repeats, dim=1)
    scores = torch.einsum("hd,shd->hs", q.float(), keys) * spec.scale + added
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    lse = scores.logsumexp(dim=-1)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().unsqueeze(-1)], dim=-1)
    weights = scores.softmax(dim=-1)[:, : keys.shape[0]]
    return torch.einsum("hs,shd->hd", weights, values).to(q.dtype), lse


def _seen(layout: BatchLayout) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each token of a step with the slots that it sees: all up to itself."""
    for row in range(layout.num_rows):
        slots = _slots(layout, row, layout.seq_lens_host[row])
        first, last = layout.query_start_host[row], layout.query_start_host[row + 1]
        for token in range(first, last):
            yield token, slots[: len(slots) - (last - 1 - token)]
