"""Compressed attention: a query attends to the last w tokens, and to entries that each cover
several tokens; one softmax with sinks is over both.

With x a token's input and c_q the latent of its query:

    q = norm(q_b_proj c_q) of each head,  k = norm(kv_proj x)    # the last numbers of both turned
    a = softmax of q . (k of the last w tokens, entries, sink)   # keys are values
    h = o_b_proj(o_a_proj(a turned back))                        # o_a_proj: a matrix for each group

Compressors whose windows overlap have an indexer, which scores the entries by smaller ones of its
own as DeepSeek-V3.2's does tokens; a query attends to those with the highest scores. Without an
indexer it attends to all entries of whole windows before it.
Source: DeepSeek-AI, DeepSeek-V4, 2026, section 2.3, as transformers has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import BatchLayout, IndexCall, IndexSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import EntryPart, LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent_rows import write_latents
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.context import INDEX_KEYS, LATENTS, ForwardContext, forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kept import CachingLayer
from dovetail.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from dovetail.layers.linear.placement import Part
from dovetail.layers.norm import BareRMSNorm, RMSNorm
from dovetail.layers.opaque import CompilerBoundary
from dovetail.parallel.groups import tensor_group
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_kernels.head_products.matrices import HeadMatrices
from dovetail_plugins.layers.attention.compressor import Compressor, CompressorConfig, turned_last
from dovetail_plugins.layers.attention.token_rows import alone_rows, tokens_of
from dovetail_plugins.layers.mixers.recurrent import DividedVectors

MAX_NUMBERS = 1 << 24
"""Numbers of keys and scores to gather at a time."""
ENTRIES, KEYS = "entries", "keys"
"""The parts of a layer's compressed cache: what is attended to, and what the indexer scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedConfig:
    """The sizes of a layer: numbers of the query's latent and of a head, how many of a head's last
    are turned, w, groups of heads and numbers that each writes. `cached_tokens` of a row have their
    keys and compressors' inputs cached. A layer without a `compressor` attends to the last w tokens
    alone; `index` and `index_compressor` are an indexer's sizes."""

    query_rank: int
    head_size: int
    turned: int
    window: int
    cached_tokens: int
    groups: int
    group_rank: int
    norm_eps: float
    compressor: CompressorConfig | None = None
    index: IndexSpec | None = None
    index_compressor: CompressorConfig | None = None


class EntryIndexer(nn.Module):
    """The parameters of one layer's indexer, alike on every rank."""

    def __init__(
        self,
        context: BuildContext,
        plain: BuildContext,
        name: str,
        config: CompressorConfig,
        spec: IndexSpec,
        query_rank: int,
    ) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.compressor = Compressor(plain, f"{name}.compressor", config)
        width = spec.num_heads * spec.head_size
        self.wq_b = ReplicatedLinear(context, f"{name}.wq_b", query_rank, width)
        hidden = context.model.hidden_size
        self.weights_proj = ReplicatedLinear(plain, f"{name}.weights_proj", hidden, spec.num_heads)
        self._scale = width**-0.5

    def forward(
        self, x: torch.Tensor, query_latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and the weights of their heads. Shapes: x [T, E], query_latent [T, Q] ->
        [T, H D], [T, H] float32"""
        q = turned_last(self.wq_b(query_latent), rope, self.spec.head_size, self.config.turned)
        return q, self.weights_proj(x).float() * self._scale


class GroupedLinear(ColumnParallelLinear):
    """One matrix for each group of heads; ranks have whole groups."""

    no_adapters = "it is one matrix for each group of heads"

    def __init__(self, context: BuildContext, name: str, size: int, groups: int, rank: int) -> None:
        own = tensor_group(context.rank)
        if groups % own.size:
            raise ConfigError(
                f"{groups} groups of heads cannot be divided over {own.size} ranks.",
                where="--tensor-parallel-size",
                fix=f"use a divisor of {groups}.",
            )
        self.groups = groups // own.size
        super().__init__(context, name, size, groups * rank)
        self.matrices: HeadMatrices | None = None

    def finish(self) -> None:
        """Repack the parameters, and make each group's matrix of them. Mutates: self"""
        super().finish()
        dtype = dtype_of(self.spec.dtype)
        every = torch.eye(self.spec.in_size, dtype=dtype, device=self.spec.device)
        whole = self.method.apply(self, every, None).unflatten(-1, (self.groups, -1))
        self.matrices = HeadMatrices(whole.transpose(0, 1), dtype=dtype)
        self.register_buffer("of_groups", self.matrices.tensor, persistent=False)

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        """Return each group's product. Shapes: x [T, groups in] -> [T, groups rank]"""
        assert self.matrices is not None, "the weights are not loaded"
        return self.matrices(x.unflatten(-1, (self.groups, -1))).flatten(-2)


class CompressedAttention(CachingLayer, DividedVectors):
    """The attention of one layer. `entries` names the cache of all layers' entries."""

    def __init__(
        self,
        context: BuildContext,
        plain: BuildContext,
        name: str,
        config: CompressedConfig,
        entries: str,
    ) -> None:
        super().__init__(name)
        self.config, self.entries = config, entries
        model, size, eps = context.model, config.head_size, config.norm_eps
        hidden, heads, group = model.hidden_size, model.num_heads, tensor_group(context.rank)
        self.num_heads = group.share(heads, f"{name} heads")
        self.q_a_proj = ReplicatedLinear(context, f"{name}.q_a_proj", hidden, config.query_rank)
        self.q_a_norm = RMSNorm(context, config.query_rank, eps=eps)
        self.q_b_proj = ColumnParallelLinear(
            context, f"{name}.q_b_proj", config.query_rank, heads * size
        )
        self.q_b_norm = BareRMSNorm(context, size, eps=eps)
        self.kv_proj = ReplicatedLinear(context, f"{name}.kv_proj", hidden, size)
        self.kv_norm = RMSNorm(context, size, eps=eps)
        self.o_a_proj = GroupedLinear(
            context,
            f"{name}.o_a_proj",
            heads * size // config.groups,
            config.groups,
            config.group_rank,
        )
        self.o_b_proj = RowParallelLinear(
            context, f"{name}.o_b_proj", config.groups * config.group_rank, hidden
        )
        own = Part(name="", full=heads, local=self.num_heads, start=group.rank * self.num_heads)
        self.add_vector(context, "sinks", (own,), dtype=torch.float32)
        self.compressor: Compressor | None = None
        self.indexer: EntryIndexer | None = None
        if config.compressor is not None:
            self.compressor = Compressor(plain, f"{name}.compressor", config.compressor)
        if config.index is not None and config.index_compressor is not None:
            sizes = (config.index_compressor, config.index, config.query_rank)
            self.indexer = EntryIndexer(context, plain, f"{name}.indexer", *sizes)
        self._opaque = CompilerBoundary(self._attend)

    @property
    def compressors(self) -> list[tuple[str, Compressor]]:
        """Return the compressors, and which part of the cache each one fills."""
        found = [(ENTRIES, self.compressor)]
        if self.indexer is not None:
            found.append((KEYS, self.indexer.compressor))
        return [(part, one) for part, one in found if one is not None]

    @property
    def _entry_tokens(self) -> int:
        return 0 if self.compressor is None else self.compressor.config.tokens

    @property
    def input_size(self) -> int:
        """Return the numbers of a token's inputs of compressors."""
        return sum(2 * one.config.width for _, one in self.compressors)

    @property
    def entry_parts(self) -> tuple[EntryPart, ...]:
        """Return the parts of the cache of entries that this layer fills."""
        return tuple(
            EntryPart(name=self._part(part), size=one.config.size, tokens=one.config.tokens)
            for part, one in self.compressors
        )

    def _part(self, part: str) -> str:
        return f"{self.name}.{part}"

    def kept(self, run: RunSpec) -> LatentLayer:
        """Return the cached keys of the last tokens, and their inputs of compressors."""
        return LatentLayer(
            name=self.name,
            size=self.config.head_size,
            dtype=run.kv_dtype,
            index_size=self.input_size,
            window_tokens=self.config.cached_tokens,
        )

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        size, turned = self.config.head_size, self.config.turned
        query_latent = self.q_a_norm(self.q_a_proj(x))
        q = self.q_b_norm(self.q_b_proj(query_latent).unflatten(-1, (-1, size))).flatten(-2)
        q = turned_last(q, rope, size, turned)
        key = turned_last(self.kv_norm(self.kv_proj(x)), rope, size, turned)
        inputs = [one(x) for _, one in self.compressors]
        picking = () if self.indexer is None else self.indexer(x, query_latent, rope)
        given = torch.cat([key, *inputs], dim=-1)
        width = self.o_a_proj.groups * self.config.group_rank
        out = self._opaque(q, given, rope.cos, rope.sin, *picking, size=width)
        return self.o_b_proj(out, residual)

    def _attend(
        self,
        q: torch.Tensor,
        given: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        index_q: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return each group's product. Shapes: q [T, H D], given [T, D + inputs]; of the indexer
        index_q [T, H D], weights [T, H] -> [T, groups rank]. Mutates: the caches"""
        refuse_recording("which entries are complete depends on how long rows are")
        context = forward_context()
        layout = context.backend.layout_of(context.prepared[self.name])
        step = _step_tokens(context, layout)
        size, rope = self.config.head_size, Rope(step.positions, cos, sin)
        cells, inputs = self._cells(context)
        write_latents(given[:, :size], cells, layout.slots)
        picks = None
        if self.compressor is not None and inputs is not None:
            write_latents(given[:, size:], inputs, layout.slots)
            whole = context.backend.layout_of(context.prepared[self.entries])
            self._compress(context, step, layout, whole, inputs, rope)
            picks = self._picks(context, step, whole, index_q, weights)
        heads = q.unflatten(-1, (self.num_heads, size))
        out = self._attended(context, step, layout, heads, picks).flatten(-2)
        return self.o_a_proj.grouped(turned_last(out, _back(rope), size, self.config.turned))

    def _cells(self, context: ForwardContext) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the cached keys, and inputs of compressors. Shapes: [N, P, D], [N, P, inputs]"""
        cache = context.caches[self.name]
        if isinstance(cache, dict):
            return cache[LATENTS], cache[INDEX_KEYS]
        return cache, None

    def _entry_cache(self, context: ForwardContext, part: str) -> torch.Tensor:
        """Return one part of this layer's entries. Shapes: [N, P / tokens, size]"""
        cache = context.caches[self.entries]
        assert isinstance(cache, dict)
        return cache[self._part(part)]

    def _compress(
        self,
        context: ForwardContext,
        step: StepTokens,
        layout: BatchLayout,
        whole: BatchLayout,
        inputs: torch.Tensor,
        rope: Rope,
    ) -> None:
        """Write the entries of the windows that the step's tokens end. Mutates: the cache"""
        first = 0
        for part, compressor in self.compressors:
            config, last = compressor.config, first + 2 * compressor.config.width
            ends = step.ending(config.tokens)
            if len(ends):
                rows, positions = step.rows[ends], step.positions[ends]
                back = torch.arange(1 - config.span, 1, device=positions.device)
                at = (positions.unsqueeze(1) + back).clamp_(min=0)
                own = inputs[..., first:last]
                states = _gathered(own, layout.block_table[rows], at).to(rope_type(compressor))
                entries = compressor.entries(states, positions + 1 - config.tokens, rope)
                cache = self._entry_cache(context, part)
                blocks = whole.block_table[rows].long()
                numbers = positions // config.tokens
                block = blocks.gather(1, (numbers // cache.shape[1]).unsqueeze(1)).squeeze(1)
                cache.index_put_((block, numbers % cache.shape[1]), entries.to(cache.dtype))
            first = last

    def _picks(
        self,
        context: ForwardContext,
        step: StepTokens,
        whole: BatchLayout,
        index_q: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the entries that each token attends to, -1 for none. Shapes: -> [T, K]"""
        assert self.compressor is not None
        tokens = self.compressor.config.tokens
        counts = [count // tokens for count in step.counts]
        longest = max(counts, default=0)
        number = torch.tensor(counts, device=step.rows.device).unsqueeze(1)
        limit = longest if self.indexer is None else min(longest, self.indexer.spec.num_picked)
        every = torch.arange(limit, device=number.device)
        picks = torch.where(every < number, every, -1)
        if longest == limit or self.indexer is None or index_q is None or weights is None:
            return picks
        cache, spec = self._entry_cache(context, KEYS), self.indexer.spec
        own = [token for token, count in enumerate(counts) if count > limit]
        chosen = torch.tensor(own, device=number.device)
        rows = [step.host_rows[token] for token in own]
        alone = alone_rows(whole, chosen, rows, [counts[token] for token in own])
        alone = replace(alone, block_tokens=cache.shape[1])
        call = IndexCall(
            spec=spec,
            q=index_q[chosen].unflatten(-1, (spec.num_heads, -1)),
            weights=weights[chosen],
            keys=cache,
            prepared=context.backend.prepare(alone),
        )
        picks[chosen] = context.backend.pick(call).to(picks.dtype)
        return picks

    def _attended(
        self,
        context: ForwardContext,
        step: StepTokens,
        layout: BatchLayout,
        q: torch.Tensor,
        picks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the attention to the last tokens and to picked entries. Shapes: q [T, H, D], picks
        [T, K] -> [T, H, D]"""
        cells, _ = self._cells(context)
        width = min(self.config.window, layout.max_seq_tokens)
        back = torch.arange(1 - width, 1, device=q.device)
        count = width + (0 if picks is None else picks.shape[1])
        each = max(1, MAX_NUMBERS // (count * (self.num_heads + q.shape[-1])))
        out, tokens = torch.empty_like(q), self._entry_tokens
        has_rows_without = any(seen < tokens for seen in step.counts)
        for first in range(0, len(q), each):
            part = slice(first, first + each)
            rows, own = step.rows[part], step.positions[part].unsqueeze(1)
            hidden = own + back < 0
            at = torch.where(hidden, own, own + back)
            groups = [(_gathered(cells, layout.block_table[rows], at), hidden)]
            if picks is not None and picks.shape[1]:
                table = context.backend.layout_of(context.prepared[self.entries]).block_table[rows]
                hidden = picks[part] < 0
                cache = self._entry_cache(context, ENTRIES)
                keys = _gathered(cache, table, picks[part].clamp(min=0))
                if has_rows_without:  # their first cell may hold anything
                    keys.masked_fill_(hidden.unsqueeze(-1), 0)
                groups.append((keys, hidden))
            out[part] = self._softmax(q[part], groups)
        return out

    def _softmax(
        self, q: torch.Tensor, groups: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the attention of each token to its own keys, which are values, too: pairs of keys
        and which are hidden. Shapes: q [T, H, D], pairs [T, K, D] and [T, K] -> [T, H, D]"""
        sinks = self.get_parameter("sinks").view(1, -1, 1).expand(len(q), -1, 1)
        scores, every = [sinks], [keys.to(q.dtype) for keys, _ in groups]
        for keys, (_, hidden) in zip(every, groups, strict=True):
            found = torch.bmm(q, keys.transpose(1, 2)).float() * self.config.head_size**-0.5
            scores.append(found.masked_fill_(hidden.unsqueeze(1), -torch.inf))
        shares = torch.cat(scores, dim=-1).softmax(dim=-1).to(q.dtype)
        parts = shares.split([one.shape[-1] for one in scores], dim=-1)[1:]
        return sum(
            (torch.bmm(part, keys) for part, keys in zip(parts, every, strict=True)),
            start=torch.zeros_like(q),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """A step's tokens: each one's row, position, and how many tokens it sees.
    Shapes: rows, positions [T] int64"""

    rows: torch.Tensor
    positions: torch.Tensor
    host_rows: list[int]
    counts: list[int]

    def ending(self, tokens: int) -> torch.Tensor:
        """Return the tokens that end a window of so many. Shapes: [E]"""
        found = [token for token, count in enumerate(self.counts) if count % tokens == 0]
        return torch.tensor(found, dtype=torch.int64, device=self.rows.device)


def _step_tokens(context: ForwardContext, layout: BatchLayout) -> StepTokens:
    """Return the tokens of a step, found once for all layers. Mutates: context.once"""
    key = (StepTokens, context.first_token)
    if key not in context.once:
        rows, counts = tokens_of(layout)
        device = layout.slots.device
        context.once[key] = StepTokens(
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            positions=torch.tensor(counts, dtype=torch.int64, device=device) - 1,
            host_rows=rows,
            counts=counts,
        )
    found: StepTokens = context.once[key]
    return found


def _back(rope: Rope) -> Rope:
    """Return a rotation that undoes another."""
    cos, sin = (one.squeeze(1) for one in rope.rows())
    return Rope(torch.arange(len(cos), device=cos.device), cos, -sin)


def _gathered(cache: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return cells of rows. Shapes: cache [N, P, size], table [T, B], at [T, K] -> [T, K, size]"""
    cells = cache.shape[1]
    return cache[table.long().gather(1, at // cells), at % cells]


def rope_type(compressor: Compressor) -> torch.dtype:
    """Return the type in which a compressor computes."""
    return compressor.kv_norm.weight.dtype
