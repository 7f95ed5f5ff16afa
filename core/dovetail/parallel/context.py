"""ContextAttention: context parallelism. Each rank caches a part of every request's tokens.

The ranks have the same KV heads, which with tensor parallelism alone each of them would cache. With
N ranks, rank r caches the keys and values at positions p with p % N == r, so an engine block of N *
P tokens is a block of P tokens on every rank. A layer gathers the queries of all heads, and each
rank attends to the keys in its cache. Then each rank receives the partial outputs of its own heads
and combines them by their log-sum-exps:

    out = sum_i exp(lse_i - lse) out_i,  lse = log sum_i exp(lse_i)

Among the keys of one rank, the queries at positions p, p + N, p + 2 N, .. of a row each see one key
more than the one before. So the backend gets them as a separate row with an ordinary causal mask. A
window of W tokens, which N must divide, becomes one of W / N tokens.

Source: Yang et al., "Context Parallelism for Scalable Million-Token Inference", 2024; combining
partial outputs: Dao et al., "Flash-Decoding for long-context inference", 2023
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from msgspec import structs

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionSpec,
    BatchLayout,
)
from dovetail.interfaces.data.spec import RankSpec
from dovetail.parallel.collectives import all_gather, exchange
from dovetail.parallel.groups import Group, context_group


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedStep:
    """A step as one rank's backend sees it. If `order` is None, its tokens are in the step's order.

    Shapes: order [T], the step's token at each place; places [T], the place of each token of the
    step; blind [B], tokens that see no key on this rank
    """

    prepared: Any
    order: torch.Tensor | None
    places: torch.Tensor | None
    blind: torch.Tensor | None


class ContextAttention(AttentionBackend):
    """A backend with a cache divided over a group. Has no claims: the inner backend was chosen."""

    def __init__(self, backend: AttentionBackend, group: Group) -> None:
        super().__init__(backend.options)
        self._backend, self._group = backend, group
        self._specs: dict[AttentionSpec, AttentionSpec] = {}

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of one layer's cache on this rank."""
        own = block_tokens // self._group.size
        return self._backend.kv_shape(num_blocks, own, num_kv_heads, head_size)

    def prepare(self, layout: BatchLayout) -> DividedStep:
        """Return the step's rows as rows over this rank's part of the cache."""
        if layout.max_query_tokens == 1:
            return self._prepare_decodes(layout)
        return self._prepare_rows(layout)

    def _own_slots(self, layout: BatchLayout) -> torch.Tensor:
        """Return this rank's slot of each token; tokens of other ranks go to the null block."""
        size, rank = self._group.size, self._group.rank
        slots = layout.slots
        return torch.where(slots % size == rank, slots // size, 0)

    def _num_kept(self, num_tokens: int) -> int:
        """Return how many of a row's first tokens this rank caches."""
        return (num_tokens + self._group.size - 1 - self._group.rank) // self._group.size

    def _prepare_decodes(self, layout: BatchLayout) -> DividedStep:
        """Return a step in which every row has one query token; tokens stay in order."""
        size, rank = self._group.size, self._group.rank
        seq_lens = (layout.seq_lens + (size - 1 - rank)) // size
        lens = [max(1, self._num_kept(n)) for n in layout.seq_lens_host]
        blind = [row for row, n in enumerate(layout.seq_lens_host) if n <= rank]
        own = replace(
            layout,
            seq_lens=seq_lens.clamp_(min=1).to(layout.seq_lens.dtype),
            slots=self._own_slots(layout),
            seq_lens_host=lens,
            block_tokens=layout.block_tokens // size,
            max_seq_tokens=max(1, self._num_kept(layout.max_seq_tokens)),
        )
        return DividedStep(
            prepared=self._backend.prepare(own),
            order=None,
            places=None,
            blind=_index(blind, layout) if blind else None,
        )

    def _prepare_rows(self, layout: BatchLayout) -> DividedStep:
        """Return any kind of step: each row is split into up to N, of tokens N positions apart."""
        parts = self._parts(layout)
        tokens = np.concatenate([part.tokens for part in parts])
        starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
        lens = [max(1, part.num_keys) for part in parts]
        blind = [int(part.tokens[0]) for part in parts if not part.num_keys]
        own = BatchLayout(
            query_start=_index(starts, layout).int(),
            seq_lens=_index(lens, layout).int(),
            block_table=layout.block_table[_index([part.row for part in parts], layout)],
            slots=self._own_slots(layout),
            query_start_host=starts.tolist(),
            seq_lens_host=lens,
            block_tokens=layout.block_tokens // self._group.size,
            max_query_tokens=max(len(part.tokens) for part in parts),
            max_seq_tokens=max(lens),
        )
        return DividedStep(
            prepared=self._backend.prepare(own),
            order=_index(tokens, layout),
            places=_index(np.argsort(tokens), layout),
            blind=_index(blind, layout) if blind else None,
        )

    def _parts(self, layout: BatchLayout) -> list[_Part]:
        """Return the rows for this rank's backend."""
        size, parts = self._group.size, []
        for row, (first, last) in enumerate(pairwise(layout.query_start_host)):
            start = layout.seq_lens_host[row] - (last - first)
            for offset in range(min(size, last - first)):
                tokens = np.arange(first + offset, last, size)
                if not self._num_kept(start + offset + 1):  # its first token sees no key here
                    parts.append(_Part(row=row, tokens=tokens[:1], num_keys=0))
                    tokens = tokens[1:]
                if len(tokens):
                    end = start + int(tokens[-1]) - first + 1
                    parts.append(_Part(row=row, tokens=tokens, num_keys=self._num_kept(end)))
        return parts

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write this rank's keys and values, attend with all ranks, combine its own heads' outputs.

        Shapes: as the backend's. Mutates: cache
        """
        prepared: DividedStep = call.prepared
        every = all_gather(call.q, self._group, axis=1)
        if prepared.order is not None:
            every = every.index_select(0, prepared.order)
        spec = self._whole(call.spec)
        own = structs.replace(call, spec=spec, q=every, prepared=prepared.prepared, sinks=None)
        out, lse = self._backend.forward_lse(own)
        if prepared.places is not None:
            out, lse = (x.index_select(0, prepared.places) for x in (out, lse))
        if prepared.blind is not None:
            out[prepared.blind], lse[prepared.blind] = 0.0, -torch.inf
        return joined(*self._own_heads(out, lse), call.sinks)

    def _whole(self, spec: AttentionSpec) -> AttentionSpec:
        """Return the spec for the heads of all ranks over one rank's keys; cached, so always one
        object."""
        if spec not in self._specs:
            size, window = self._group.size, spec.window_tokens
            assert spec.num_kv_heads == 1, "only a head that all ranks hold is divided"
            assert spec.is_causal, "queries that see what comes after them cannot be divided"
            if spec.alibi_slopes is not None:
                raise ConfigError(
                    "ALiBi biases count positions, of which each rank has a part.",
                    where="--decode-context-parallel-size",
                    fix="leave it out for this model.",
                )
            if spec.chunk_tokens is not None:
                raise ConfigError(
                    "chunks count positions, of which each rank has a part.",
                    where="--decode-context-parallel-size",
                    fix="leave it out for this model.",
                )
            if window is not None and window % size:
                raise ConfigError(
                    f"a sliding window of {window} tokens cannot be divided evenly over {size} "
                    "ranks.",
                    where="--decode-context-parallel-size",
                    fix=f"use a number of ranks that divides {window}.",
                )
            self._specs[spec] = replace(
                spec,
                num_heads=spec.num_heads * size,
                window_tokens=None if window is None else window // size,
            )
        return self._specs[spec]

    def _own_heads(self, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all ranks' partial outputs for this rank's heads, in one exchange of bytes.

        Shapes: out [T, N * H, D], lse [T, N * H] -> [N, T, H, D], [N, T, H]
        """
        both = torch.cat([out, lse.unsqueeze(-1).view(out.dtype)], dim=-1)
        of_ranks = both.unflatten(1, (self._group.size, -1)).transpose(0, 1).contiguous()
        got = exchange(of_ranks, self._group)
        width = out.shape[-1]
        return got[..., :width], got[..., width:].contiguous().view(lse.dtype).squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tokens of a row that are N positions apart. The last one sees `num_keys` keys here."""

    row: int
    tokens: np.ndarray
    num_keys: int


def over_ranks(backend: AttentionBackend, rank: RankSpec) -> AttentionBackend:
    """Return the backend divided over this rank's context-parallel group, which must have joined.
    In a group of size 1 it is the backend itself."""
    group = context_group(rank)
    return backend if group.size == 1 else ContextAttention(backend, group)


def joined(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return attention over all keys, combined from N partial outputs.

    Shapes: out [N, T, H, D], lse [N, T, H], sinks [H] -> [T, H, D]
    """
    whole = lse.logsumexp(dim=0)
    if sinks is not None:
        whole = torch.logaddexp(whole, sinks.float())
    shares = (lse - whole).exp_().unsqueeze(-1)
    return (out.float() * shares).sum(dim=0).to(out.dtype)


def _index(numbers: Any, layout: BatchLayout) -> torch.Tensor:
    """Return numbers as a tensor on the step's device. Shapes: [n] int64"""
    tensor = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
    return tensor.to(layout.block_table.device, non_blocking=True)
