"""Multi-head latent attention (MLA): caches one latent per token; keys and values are made from it.

With c the latent of a token (its first L numbers normed, R more rotated by its position) and kv_b
the matrix that makes each head's key (N numbers) and value (V) from it, a score is

    q_nope . (c_L K^T) + q_rope . c_R  =  (q_nope K) . c_L + q_rope . c_R

So a query times K (absorbed) can attend to latents as cached, and the weighted sum of latents is
turned into values afterwards. That reads little and suits rows of few tokens. In a long row many
queries meet each latent, and it is cheaper to compute its keys and values once (expanded) and
attend as usual. Both give the same result.

The two absorbing matrices are made from the weights that kv_b multiplies with; for a quantized kv_b
these are the dequantised values. Ranks divide the heads; each caches all latents.
Source: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1 and appendix C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from dovetail.interfaces.attention import BatchLayout, LatentCall, LatentSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent_rows import (
    LatentRows,
    LongRow,
    attend_expanded,
    long_rows,
    read_latents,
    write_latents,
)
from dovetail.layers.attention.rotary import Rope, RopeSettings, apply_rotary, rope_settings
from dovetail.layers.context import ForwardContext, forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.kept import CachingLayer
from dovetail.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from dovetail.layers.native import runs_natively
from dovetail.layers.norm import RMSNorm
from dovetail.layers.opaque import CompilerBoundary, is_traced
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import qk_rotary
from dovetail_kernels.head_products.matrices import HeadMatrices
from dovetail_kernels.qk_rotary.native import QkRotary

EXPANDING_PAYS = 1.1
"""Expanding pays from this many times the tokens at which multiplications are equal (see
`min_expanded`). Measured with 16 heads of DeepSeek's sizes on one core of a Xeon with AVX-512:
equal at 192 tokens, after 1024 as after 3072 others; multiplications are equal at 171."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """The sizes of a model's latent attention: `query_rank` of the queries' own latents (None: they
    have none), L, N, R and V, and the `scale` of scores. `is_interleaved`: rotated pairs are
    adjacent. `has_bias`: for matrices that read or write hidden states. `up_factor` multiplies the
    keys and values made from latents, not the rotated numbers."""

    query_rank: int | None
    latent_size: int
    plain_size: int
    rope_size: int
    value_size: int
    scale: float
    norm_eps: float
    is_interleaved: bool = True
    has_bias: bool = False
    up_factor: float = 1.0

    @property
    def min_expanded(self) -> int:
        """Return the minimum tokens of a row for which expanding the latents they see is cheaper.

        Against S latents, T absorbed queries take T S (2 L + R) + T L (N + V) multiplications a
        head, expanded ones T S (N + R + V) + S L (N + V).
        """
        saved = 2 * self.latent_size - self.plain_size - self.value_size
        spent = self.latent_size * (self.plain_size + self.value_size)
        return max(2, math.ceil(EXPANDING_PAYS * spent / saved)) if saved > 0 else 2


def latent_rope(context: BuildContext, rope_size: int) -> RopeSettings:
    """Return the settings of a rotary table for the R rotated numbers of a head."""
    return replace(rope_settings(context), size=rope_size)


def score_scale(settings: RopeSettings, head_size: int) -> float:
    """Return the factor of scores: 1 / sqrt(D), times YaRN's squared temperature if config.json
    applies it to all numbers of a head (`mscale_all_dim`)."""
    weight = settings.optional("mscale_all_dim")
    if settings.rule == "default" or not weight:
        return head_size**-0.5
    factor = settings.number("factor")
    grown = 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return head_size**-0.5 * grown * grown


class LatentUp(ColumnParallelLinear):
    """kv_b: makes each head's key and value from a latent, and stores the absorbing matrices."""

    no_adapters = "it is absorbed into the queries of latent attention"

    def __init__(self, context: BuildContext, name: str, config: LatentConfig, heads: int) -> None:
        self.sizes = (config.plain_size, config.value_size)
        self.factor = config.up_factor
        width = heads * sum(self.sizes)
        super().__init__(context, name, config.latent_size, width)
        self.absorbing: tuple[HeadMatrices, HeadMatrices] | None = None

    def finish(self) -> None:
        """Repack the parameters, and make the absorbing matrices from them. Mutates: self"""
        super().finish()
        dtype = dtype_of(self.spec.dtype)
        every = torch.eye(self.spec.in_size, dtype=dtype, device=self.spec.device)
        keys, values = self.expanded(every).split(self.sizes, dim=-1)
        self.absorbing = (
            HeadMatrices(keys.permute(1, 2, 0), dtype=dtype),
            HeadMatrices(values.transpose(0, 1), dtype=dtype),
        )
        for word, matrices in zip(("keys", "values"), self.absorbing, strict=True):
            self.register_buffer(f"absorbing_{word}", matrices.tensor, persistent=False)

    def expanded(self, latents: torch.Tensor) -> torch.Tensor:
        """Return each head's unrotated part of the key, and its value.

        Shapes: latents [S, L] -> [S, H, N + V]
        """
        heads = self.method.apply(self, latents, None).unflatten(-1, (-1, sum(self.sizes)))
        return heads if self.factor == 1.0 else heads * self.factor


class LatentAttention(CachingLayer):
    """The attention of one layer. `name` is unique in the model and names the layer's cache. A
    parameter `sinks` of a subclass has the score of each head's sink. Shapes: sinks [H]"""

    def __init__(self, context: BuildContext, name: str, config: LatentConfig) -> None:
        super().__init__(name)
        model = context.model
        self.config = config
        heads = model.num_heads
        hidden, has_bias = model.hidden_size, config.has_bias
        self.head_size = config.plain_size + config.rope_size
        self.spec = LatentSpec(
            num_heads=tensor_group(context.rank).share(heads, f"{name} heads"),
            latent_size=config.latent_size,
            rope_size=config.rope_size,
            scale=config.scale,
        )
        self.build_queries(context, name)
        self.kv_a_proj_with_mqa = ReplicatedLinear(
            context, f"{name}.kv_a_proj_with_mqa", hidden, self.spec.size, bias=has_bias
        )
        self.kv_a_layernorm = RMSNorm(context, config.latent_size, eps=config.norm_eps)
        self.kv_b_proj = LatentUp(context, f"{name}.kv_b_proj", config, heads)
        self.o_proj = RowParallelLinear(
            context, f"{name}.o_proj", heads * config.value_size, hidden, bias=has_bias
        )
        self._turns = self._turns_of(context)
        self._opaque = CompilerBoundary(self._attend)

    def build_queries(self, context: BuildContext, name: str) -> None:
        """Create the query matrices. Mutates: self"""
        config, model = self.config, context.model
        width = model.num_heads * self.head_size
        if config.query_rank is None:
            self.q_proj = ColumnParallelLinear(context, f"{name}.q_proj", model.hidden_size, width)
            return
        self.build_query_latents(context, name, config.query_rank)
        self.q_b_proj = ColumnParallelLinear(context, f"{name}.q_b_proj", config.query_rank, width)

    def build_query_latents(self, context: BuildContext, name: str, rank: int) -> None:
        """Create the matrix of the queries' own latents, and their norm. Mutates: self"""
        config, hidden = self.config, context.model.hidden_size
        self.q_a_proj = ReplicatedLinear(
            context, f"{name}.q_a_proj", hidden, rank, bias=config.has_bias
        )
        self.q_a_layernorm = RMSNorm(context, rank, eps=config.norm_eps)

    def _turns_of(self, context: BuildContext) -> tuple[QkRotary, QkRotary, QkRotary] | None:
        """Return the kernels that rotate queries, norm latents and rotate latents; None if torch
        does this. Each changes a part of every row in place."""
        if not runs_natively(qk_rotary.OP, context):
            return None
        config, pairs = self.config, self.config.is_interleaved
        heads, size = self.spec.num_heads, self.head_size
        return (
            QkRotary(heads, 0, size, is_interleaved=pairs),
            QkRotary(1, 0, config.latent_size, eps=config.norm_eps),
            QkRotary(1, 0, config.rope_size, is_interleaved=pairs),
        )

    def kept(self, run: RunSpec) -> LatentLayer | None:
        """Return the cached latents; every rank caches all of them."""
        return LatentLayer(name=self.name, size=self.spec.size, dtype=run.kv_dtype)

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.o_proj(self.attended(x, rope), residual)

    def attended(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Return the attention output of this rank's heads. Shapes: x [T, E] -> [T, H V]"""
        if self.config.query_rank is None:
            return self.attend(x, rope, self.q_proj(x))
        query_latent = self.q_a_layernorm(self.q_a_proj(x))
        return self.attend(x, rope, self.q_b_proj(query_latent), query_latent)

    def attend(
        self,
        x: torch.Tensor,
        rope: Rope,
        q: torch.Tensor,
        query_latent: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention output for queries; `query_latent`: the normed latents behind them.

        Shapes: x [T, E], q [T, H (N + R)], query_latent [T, query_rank] -> [T, H V]. Mutates: q
        """
        picking = self.picking(x, query_latent, rope)
        q, latent = self._turned(q, self.kv_a_proj_with_mqa(x), rope)
        size = self.spec.num_heads * self.config.value_size
        return self._opaque(q, latent, *picking, size=size)

    def picking(
        self, x: torch.Tensor, query_latent: torch.Tensor | None, rope: Rope
    ) -> tuple[torch.Tensor, ...]:
        """Return the tensors that select the latents to attend to; empty here: all of them."""
        return ()

    def _turned(
        self, q: torch.Tensor, latent: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries rotated, and latents normed and rotated. Mutates: both, if there is a
        kernel. Shapes: q [T, H (N + R)], latent [T, L + R]"""
        config = self.config
        if self._turns is not None and not is_traced():
            turn_queries, norm, turn_latents = self._turns
            table = (rope.cos, rope.sin, rope.positions)
            turn_queries(q[:, config.plain_size :], *table)
            weight = self.kv_a_layernorm.weight
            none = rope.cos[:, :0]
            norm(latent, none, none, rope.positions, q_weight=weight)
            turn_latents(latent[:, config.latent_size :], *table)
            return q, latent
        heads = q.unflatten(-1, (-1, self.head_size))
        plain, turned = heads.split((config.plain_size, config.rope_size), dim=-1)
        turned = self._turn(turned.flatten(-2), rope).view_as(turned)
        q = torch.cat([plain, turned], dim=-1).flatten(-2)
        latents, turned = latent.split((config.latent_size, config.rope_size), dim=-1)
        return q, torch.cat([self.kv_a_layernorm(latents), self._turn(turned, rope)], dim=-1)

    def _turn(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Return the heads' numbers rotated. Shapes: x [T, H R] -> [T, H R]"""
        size, pairs = self.config.rope_size, self.config.is_interleaved
        return apply_rotary(x, rope, size, is_interleaved=pairs)

    def _attend(self, q: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Shapes: q [T, H (N + R)], latent [T, L + R] -> [T, H V]"""
        return self._attended(q, latent)

    def _attended(
        self, q: torch.Tensor, latent: torch.Tensor, picks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the attention output over all earlier positions, or over the `picks` among them.

        Shapes: q [T, H (N + R)], latent [T, L + R], picks [T, K] -> [T, H V]
        """
        q = q.unflatten(-1, (self.spec.num_heads, self.head_size))
        context = forward_context()
        rows = self._rows(context, picks)
        if rows is None:
            return self._absorbed(q, latent, context.prepared[self.name], picks).flatten(-2)
        cache = self._cache()
        write_latents(latent, cache, rows.layout.slots)  # rows may read each other's blocks
        out = q.new_empty(*q.shape[:2], self.config.value_size)
        if rows.tokens is not None:
            tokens = rows.tokens
            others = None if picks is None else picks[tokens]
            out[tokens] = self._absorbed(q[tokens], latent[tokens], rows.prepared, others)
        self._attend_long(q, cache, rows, out, picks)
        return out.flatten(-2)

    def _rows(self, context: ForwardContext, picks: torch.Tensor | None) -> LatentRows | None:
        """Return the rows that attend to expanded keys and values (None: no row does)."""
        del picks
        return long_rows(context, self.name, self.config.min_expanded)

    def _cache(self) -> torch.Tensor:
        """Return the latents of all rows. Shapes: [N, P, L + R]"""
        cache = forward_context().caches[self.name]
        assert isinstance(cache, torch.Tensor)
        return cache

    def _absorbed(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        prepared: object,
        picks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the attended values, computed from sums of latents.

        Shapes: q [T, H, N + R], latent [T, L + R], picks [T, K] -> [T, H, V]. Mutates: the cache
        """
        backend = forward_context().backend
        assert self.kv_b_proj.absorbing is not None, "the weights are not loaded"
        keys, values = self.kv_b_proj.absorbing
        call = LatentCall(
            spec=self.spec,
            q=keys(q),
            latent=latent,
            cache=self._cache(),
            prepared=prepared,
            picks=picks,
            sinks=self._parameters.get("sinks"),
        )
        attend = backend.forward_latent if picks is None else backend.forward_picked
        return values(attend(call))

    def _attend_long(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        rows: LatentRows,
        out: torch.Tensor,
        picks: torch.Tensor | None,
    ) -> None:
        """Compute the attention of long rows with expanded keys and values. Mutates: out"""
        for row in rows.long:
            self._attend_piece(q, cache, rows.layout, row, 0, out, picks)

    def _attend_piece(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        layout: BatchLayout,
        row: LongRow,
        first: int,
        out: torch.Tensor,
        picks: torch.Tensor | None,
    ) -> None:
        """Compute the attention of a long row's tokens, which see no position before `first`.
        Mutates: out"""
        latents = read_latents(cache, layout, row.row, row.end, first).to(q.dtype)
        if picks is not None:
            picks = picks[row.tokens]
            picks = picks.sub(first).clamp_(min=-1) if first else picks
        out[row.tokens] = attend_expanded(
            q[row.tokens],
            latents,
            row.start - first,
            self.spec.scale,
            self._keys_and_values,
            self.config.value_size,
            picks,
            self._parameters.get("sinks"),
        )

    def _keys_and_values(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Shapes: latents [S, L + R] -> [H, S, N + R], [H, S, V]"""
        unrotated, turned = latents.split((self.spec.latent_size, self.spec.rope_size), dim=-1)
        expanded = self.kv_b_proj.expanded(unrotated.contiguous()).transpose(0, 1)
        plain, values = expanded.split(self.kv_b_proj.sizes, dim=-1)
        shared = turned.expand(len(plain), -1, -1)
        return torch.cat([plain, shared], dim=-1), values.contiguous()
