"""Sparse grouped attention to pools: all heads of a query attend to the pools of B tokens that an
indexer picks, and to the tokens after the last whole pool.

With x a token's input, of small heads that share a key:

    q, k = index_qk_proj x                               # q normed and rotated, k as it is
    key of a pool: norm(mean over its tokens s of k_s), rotated like its first token
    score of a pool for query t: sum over heads h of relu(q_th . key)

A token's position in time, height and width is cached with its k, in digits that every type holds
exactly: its pool may be complete only in a later step. A value and its key are cached side by side
as one latent of a kv head: queries of zeros before their own numbers make attention over latents
grouped attention, so that backends that attend to picked latents need nothing else. As long as all
pools of a step's rows are picked, attention is dense.
Source: Qwen team, Qwen4-Exp, 2026, as transformers has it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec, LatentCall, LatentSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import LatentLayer
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.latent_rows import write_latents
from dovetail.layers.attention.rotary import Rope, Rotary, apply_rotary
from dovetail.layers.context import (
    INDEX_KEYS,
    LATENTS,
    ForwardContext,
    forward_context,
    step_media,
)
from dovetail.layers.decoder import DecoderConfig
from dovetail.layers.kept import CachingLayer
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.media import SpatialRotary
from dovetail.layers.opaque import CompilerBoundary
from dovetail_kernels.cpu.program import refuse_recording
from dovetail_plugins.layers.attention.gated import GatedAttention
from dovetail_plugins.layers.attention.picked_pools import PickedCall, PoolPicker, PoolsConfig
from dovetail_plugins.model_types.qwen4_exp import NUM_DIGITS

DIGIT = 256
"""The base of digits: numbers up to it are exact in bfloat16."""


class HeadIndexer(nn.Module):
    """The parameters of one layer's indexer, on every rank those of all heads."""

    def __init__(
        self, context: BuildContext, name: str, config: PoolsConfig, norms: DecoderConfig
    ) -> None:
        super().__init__()
        if context.rope_factors:
            raise ConfigError(
                "pools of tokens are rotated by the model's own table alone.",
                where="--long-lora-scaling-factors",
                fix="leave it out.",
            )
        size = config.head_size
        self.config, self.cached_size = config, size + NUM_DIGITS
        self.index_qk_proj = ReplicatedLinear(
            context,
            f"{name}.index_qk_proj",
            context.model.hidden_size,
            (config.num_heads + 1) * size,
        )
        self.q_layernorm = norms.norm(context, size, eps=norms.norm_eps)
        self.k_layernorm = norms.norm(context, size, eps=norms.norm_eps)

    def turn_by(self, rotary: Rotary) -> None:
        """Rotate pools by the table of the layers that attend. Mutates: self"""
        pairs = torch.zeros(rotary.size // 2, dtype=torch.int64)
        is_spatial = isinstance(rotary, SpatialRotary)
        directions = rotary.get_buffer("directions") if is_spatial else pairs
        self._table = (rotary.get_buffer("cos"), rotary.get_buffer("sin"), directions)

    def forward(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries, and what tokens cache for their pools' keys.
        Shapes: x [T, E] -> [T, H D], [T, C]"""
        size, media = self.config.head_size, step_media()
        q, keys = self.index_qk_proj(x).split((self.config.num_heads * size, size), dim=-1)
        q = self.q_layernorm(q.unflatten(-1, (-1, size))).flatten(-2)
        places = rope.positions.expand(3, -1)
        if media is not None and media.positions is not None:
            places = media.positions
        return apply_rotary(q, rope, size), torch.cat([keys, _digits(places).to(keys)], dim=-1)

    def pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Return the keys of whole pools. Shapes: states [S, C] -> [S // B, D]"""
        size, width = self.config.pool_size, self.config.head_size
        whole = states[: len(states) // size * size].unflatten(0, (-1, size))
        keys = self.k_layernorm(whole[..., :width].float().mean(dim=1).to(states.dtype))
        cos, sin, directions = self._table
        at = _numbers(whole[:, 0, width:])[:, directions]
        rope = Rope(torch.arange(len(at), device=at.device), cos.gather(0, at), sin.gather(0, at))
        return apply_rotary(keys, rope, width)


def _digits(places: torch.Tensor) -> torch.Tensor:
    """Return positions in digits. Shapes: [3, T] -> [T, NUM_DIGITS]"""
    powers = DIGIT ** torch.arange(NUM_DIGITS // 3, device=places.device)
    return (places.T.unsqueeze(-1) // powers % DIGIT).flatten(1)


def _numbers(digits: torch.Tensor) -> torch.Tensor:
    """Return the positions that digits say. Shapes: [T, NUM_DIGITS] -> [T, 3] int64"""
    powers = DIGIT ** torch.arange(NUM_DIGITS // 3, device=digits.device)
    return (digits.long().unflatten(-1, (3, -1)) * powers).sum(dim=-1)


class CachedHead(CachingLayer):
    """What the tokens of a row cache of one kv head: the value, then the key; `index_size` more
    numbers are an indexer's."""

    def __init__(self, name: str, size: int, index_size: int) -> None:
        super().__init__(name)
        self.size, self.index_size = 2 * size, index_size

    def kept(self, run: RunSpec) -> LatentLayer:
        """Return the latents."""
        return LatentLayer(
            name=self.name, size=self.size, dtype=run.kv_dtype, index_size=self.index_size
        )

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values with keys of all rows, and the indexer's numbers, if it has any.
        Shapes: [N, P, 2 D], [N, P, index_size]"""
        cache = forward_context().caches[self.name]
        if isinstance(cache, torch.Tensor):
            return cache, cache[..., :0]
        return cache[LATENTS], cache[INDEX_KEYS]


class PooledHeads(nn.Module):
    """The attention of one layer, with a cache for each kv head; the first one has the indexer's
    numbers, too."""

    def __init__(self, name: str, spec: AttentionSpec, indexer: HeadIndexer) -> None:
        super().__init__()
        size, count = spec.head_size, spec.num_kv_heads
        self.heads = nn.ModuleList(
            CachedHead(f"{name}.heads.{i}", size, 0 if i else indexer.cached_size)
            for i in range(count)
        )
        self.spec = spec
        self.latents = LatentSpec(
            num_heads=spec.num_heads // count, latent_size=size, rope_size=size, scale=spec.scale
        )
        self.picker = PoolPicker(indexer.config)
        self._pooled = indexer.pooled
        self._opaque = CompilerBoundary(self._attend)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
    ) -> torch.Tensor:
        """Return the attended values; `index_q` and `index_k` are the indexer's.

        Shapes: q [T, H*D], k and v [T, K*D] -> [T, H*D]
        """
        width = self.spec.num_heads * self.spec.head_size
        return self._opaque(q, k, v, index_q, index_k, size=width)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
    ) -> torch.Tensor:
        refuse_recording("whether an indexer picks depends on how long rows are")
        context, first = forward_context(), self.heads[0]
        assert isinstance(first, CachedHead)
        layout = context.backend.layout_of(context.prepared[first.name])
        _, index_cache = first.parts()
        write_latents(index_k, index_cache, layout.slots)
        calls = None
        if layout.max_seq_tokens >= self.picker.min_tokens:
            ones = torch.ones(len(q), self.picker.spec.num_heads, device=q.device)
            calls = self.picker.calls(context, layout, index_cache, self._pooled, index_q, ones)
        size, count = self.spec.head_size, len(self.heads)
        queries = q.unflatten(-1, (count, -1, size))
        both = torch.cat([x.unflatten(-1, (count, size)) for x in (v, k)], dim=-1)
        found = [
            self._head(context, head, F.pad(queries[:, i], (size, 0)), both[:, i], calls)
            for i, head in enumerate(self.heads)
        ]
        return torch.cat(found, dim=1).flatten(-2)

    def _head(
        self,
        context: ForwardContext,
        head: nn.Module,
        q: torch.Tensor,
        latent: torch.Tensor,
        calls: list[PickedCall] | None,
    ) -> torch.Tensor:
        """Return the attended values of one kv head. Shapes: q [T, G, 2 D], latent [T, 2 D] ->
        [T, G, D]. Mutates: the cache"""
        assert isinstance(head, CachedHead)
        prepared, (cache, _) = context.prepared[head.name], head.parts()
        if calls is None:
            return context.backend.forward_latent(
                LatentCall(spec=self.latents, q=q, latent=latent, cache=cache, prepared=prepared)
            )
        layout = context.backend.layout_of(prepared)
        write_latents(latent, cache, layout.slots)  # calls may read each other's tokens
        out = q.new_empty(*q.shape[:2], self.spec.head_size)
        for call in calls:
            own = call.tokens
            out[own] = context.backend.forward_picked(
                LatentCall(
                    spec=self.latents,
                    q=q[own],
                    latent=latent[own],
                    cache=cache,
                    prepared=call.prepared,
                    picks=call.picks,
                )
            )
        return out


class PooledGatedAttention(GatedAttention):
    """Gated attention over the pools that an indexer picks."""

    attn: PooledHeads  # type: ignore[assignment]  # it has a cache for each kv head

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer: int,
        pools: PoolsConfig,
    ) -> None:
        super().__init__(context, name, config, layer)
        self.indexer = HeadIndexer(context, f"{name}.indexer", pools, config)
        self.attn = PooledHeads(name, self.attn.spec, self.indexer)

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        assert rope is not None, "pools are rotated"
        *others, width = self.qkv_proj.spec.out_sizes
        qkv, gate = self.qkv_proj(x).split((sum(others), width), dim=-1)
        q, k, v = self.rotate(qkv, rope)
        attended = self.attn(q, k, v, *self.indexer(x, rope))
        return self.o_proj(self._open(attended, gate), residual)
