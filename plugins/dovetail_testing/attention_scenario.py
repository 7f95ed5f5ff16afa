"""Scene: rows over a poisoned paged cache, stepped through a backend and the reference alike.

Every cell not written yet holds NaN, and the rows' blocks are in random order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionSpec,
    BatchLayout,
)
from dovetail_testing.reference import ReferenceAttention

UsageCounter = Sequence[tuple[int, int]]
"""A step: (row, number of tokens) pairs in batch order."""


class Scene:
    """`step` returns what backend and reference make of one step; both keep their caches."""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        *,
        num_rows: int,
        block_tokens: int = 4,
        max_row_tokens: int = 40,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.backend, self.spec, self.kv_dtype = backend, spec, kv_dtype or dtype
        self.block_tokens, self.dtype, self.device = block_tokens, dtype, device
        self.sinks: torch.Tensor | None = None
        self.random = torch.Generator().manual_seed(seed)
        per_row = math.ceil(max_row_tokens / block_tokens)
        self.num_blocks = num_blocks = 2 * num_rows * per_row + 1
        order = (torch.randperm(num_blocks - 1, generator=self.random) + 1).tolist()
        self.blocks: list[list[int]] = [
            order[row * per_row : (row + 1) * per_row] for row in range(num_rows)
        ]
        self.lengths = [0] * num_rows
        self._reference = ReferenceAttention()
        sizes = (num_blocks, block_tokens, spec.num_kv_heads, spec.head_size)
        empty = torch.full(backend.kv_shape(*sizes), math.nan)
        self.cache = empty.to(device=device, dtype=self.kv_dtype)
        self._plain_cache = torch.full(self._reference.kv_shape(*sizes), math.nan)

    def lay_apart(self, gap: int) -> None:
        """Put a gap of `gap` numbers between two blocks of the backend's cache. Mutates: self"""
        axis = self.cache.shape.index(self.num_blocks)
        blocks = self.cache.movedim(axis, 0).contiguous()
        inside = blocks.shape[1:]
        memory = blocks.new_full((self.num_blocks, math.prod(inside) + gap), math.nan)
        strides = (memory.stride(0), *blocks[0].stride())
        self.cache = memory.as_strided(blocks.shape, strides).movedim(0, axis)

    def draw(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return random q, k, v of a step. Shapes: [T, H, D], [T, K, D], [T, K, D]"""
        heads = (self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads)
        shapes = [(num_tokens, count, self.spec.head_size) for count in heads]
        q, k, v = (torch.randn(shape, generator=self.random).to(self.dtype) for shape in shapes)
        return q, k, v

    def step(self, counts: UsageCounter) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (backend, reference) of a step of random tokens, [T, H, D]. Mutates: self"""
        return self.step_with(counts, *self.draw(sum(count for _, count in counts)))

    def step_with(
        self, counts: UsageCounter, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (backend, reference) of a step of these tokens. Mutates: self"""
        layout, plain = self._next(counts)
        given = AttentionCall(
            spec=self.spec,
            q=q.to(self.device),
            k=k.to(self.device),
            v=v.to(self.device),
            cache=self.cache,
            prepared=self.backend.prepare(layout),
            sinks=None if self.sinks is None else self.sinks.to(self.device),
        )
        expected_call = AttentionCall(
            spec=replace(self.spec, k_scale=1.0, v_scale=1.0),
            q=q.float(),
            k=self._kept(k, self.spec.k_scale),
            v=self._kept(v, self.spec.v_scale),
            cache=self._plain_cache,
            prepared=plain,
            sinks=self.sinks,
        )
        got, wanted = self.backend.forward(given), self._reference.forward(expected_call)
        return got.cpu(), wanted

    def lse_step(
        self, counts: UsageCounter, slots: torch.Tensor | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the results of `forward_lse` in backend and reference for a step of random tokens,
        whose keys go to their rows, or to `slots`: [T, H, D] and [T, H] each. Mutates: self"""
        q, k, v = self.draw(sum(count for _, count in counts))
        pairs = zip((self.backend, self._reference), self._next(counts), strict=True)
        caches, results = (self.cache, self._plain_cache), []
        for (backend, layout), cache in zip(pairs, caches, strict=True):
            if slots is not None:
                layout = replace(layout, slots=slots.to(cache.device))
            own = {"q": q.to(cache.device), "k": k.to(cache.device), "v": v.to(cache.device)}
            prepared = backend.prepare(layout)
            attended = backend.forward_lse(
                AttentionCall(spec=self.spec, cache=cache, prepared=prepared, **own)
            )
            results.append((attended[0].cpu(), attended[1].cpu()))
        return results

    def read(
        self, spec: AttentionSpec, q: torch.Tensor, layout: BatchLayout, plain: BatchLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (backend, reference) results of a layer that reads the cache. `layout` is on the
        device, `plain` on the host. Shapes: q [T, H, D] -> [T, H, D] each"""
        there, prepared = q.to(self.device), self.backend.prepare(layout)
        given = AttentionCall(spec=spec, q=there, cache=self.cache, prepared=prepared)
        expected_call = AttentionCall(spec=spec, q=q, cache=self._plain_cache, prepared=plain)
        found, wanted = (
            self.backend.forward_shared(given),
            self._reference.forward_shared(expected_call),
        )
        return found.cpu(), wanted

    def _next(self, counts: UsageCounter) -> tuple[BatchLayout, BatchLayout]:
        """Return the layout of the next step, on the device and on the host. Mutates: self"""
        layouts = self.layout(counts, self.device), self.layout(counts, "cpu")
        for row, count in counts:
            self.lengths[row] += count
        return layouts

    def _kept(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        """Return keys or values, rounded to the cache type, in float32."""
        if self.kv_dtype == x.dtype:
            return x.float()
        limit = torch.finfo(self.kv_dtype).max
        return (x.float() / scale).clamp(-limit, limit).to(self.kv_dtype).float() * scale

    def layout(self, counts: UsageCounter, device: str) -> BatchLayout:
        """Return the layout of the next step."""
        starts, lens, slots = [0], [], []
        for row, count in counts:
            starts.append(starts[-1] + count)
            lens.append(self.lengths[row] + count)
            positions = range(self.lengths[row], lens[-1])
            slots += [self._slot(row, position) for position in positions]
        used = [math.ceil(length / self.block_tokens) for length in lens]
        table = torch.zeros(len(counts), max(used), dtype=torch.int32)
        for index, (row, _) in enumerate(counts):
            table[index, : used[index]] = torch.tensor(self.blocks[row][: used[index]])
        return BatchLayout(
            query_start=torch.tensor(starts, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            block_table=table.to(device),
            slots=torch.tensor(slots, dtype=torch.int64, device=device),
            query_start_host=starts,
            seq_lens_host=lens,
            block_tokens=self.block_tokens,
            max_query_tokens=max(count for _, count in counts),
            max_seq_tokens=max(lens),
        )

    def _slot(self, row: int, position: int) -> int:
        block: int = self.blocks[row][position // self.block_tokens]
        return block * self.block_tokens + position % self.block_tokens
