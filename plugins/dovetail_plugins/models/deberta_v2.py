"""DeBERTa, version 2 and 3: BERT whose scores add products of states with positions.

For a query i and a key j of a row, with c(i - j) the bucket of their distance, and q', k' the same
matrices' products with a bucket's vector:

    score = (q_i . k_j  +  q_i . k'_c(i - j)  +  k_j . q'_c(i - j)) / sqrt(3 D)

A bias for each pair of states is not one of relative position only, so no attention backend
supports it: each row is computed by itself with torch operators, without a cache.
Source: He et al. 2020 and 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import QKVParallelLinear, attention_linears
from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail_plugins.layers.class_head import DenseClasses
from dovetail_plugins.layers.encoder import (
    ONE_KIND,
    Around,
    EncoderConfig,
    EncoderLayer,
    encoder_norm,
    usual_encoder,
)
from dovetail_plugins.models.bert import RENAMES, BertModel

FUSED = {
    "query_proj": ("qkv_proj", "q"),
    "key_proj": ("qkv_proj", "k"),
    "value_proj": ("qkv_proj", "v"),
}
CHUNK_TOKENS = 512
"""How many queries of a row have their scores in memory."""
Products = tuple[torch.Tensor, torch.Tensor]
"""q' and k' of all buckets in one layer. Shapes: [H, D, buckets] each"""


class RelativeStates(WeightHolder):
    """A vector for each bucket of distances; the layers' products with them are computed once.

    Shapes: weight [2 * span, E]
    """

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        facts, size = context.model.hf_config, context.model.hidden_size
        reach = int(facts["max_relative_positions"])
        self.reach = reach if reach > 0 else int(facts["max_position_embeddings"])
        self.count = int(facts.get("position_buckets") or -1)
        self.span = self.count if self.count > 0 else self.reach
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(2 * self.span, size, dtype=dtype, device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self._products: dict[str, Products] = {}

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return the target of a checkpoint tensor: whole on every rank (see WeightHolder)."""
        parameter = self._parameters.get(leaf)
        return None if parameter is None else [Placement(name=leaf, piece="", target=parameter)]

    def pieces(self, leaf: str) -> set[str]:
        """Return the one piece of the weight."""
        return {""}

    def finish(self) -> None:
        """Forget products of earlier weights. Mutates: self"""
        self._products.clear()

    def products(self, name: str, project: QKVParallelLinear, norm: nn.Module | None) -> Products:
        """Return a layer's products with the buckets. Mutates: self, at the first call"""
        if name not in self._products:
            states = self.weight if norm is None else norm(self.weight)
            q, k, _ = project.forward_split(states)
            self._products[name] = (
                q.unflatten(-1, (project.num_heads, -1)).permute(1, 2, 0).contiguous(),
                k.unflatten(-1, (project.num_heads, -1)).permute(1, 2, 0).contiguous(),
            )
        return self._products[name]

    def buckets(self, length: int) -> torch.Tensor:
        """Return the bucket of each query and key of a row. Shapes: -> [length, length]"""
        places = torch.arange(length, device=self.weight.device)
        near = torch.arange(1 - length, length, device=self.weight.device)
        if self.count > 0:
            near = log_buckets(near, self.count, self.reach)
        found = (near + self.span).clamp(0, 2 * self.span - 1)
        return found[places[:, None] - places[None, :] + length - 1]


def log_buckets(distances: torch.Tensor, count: int, reach: int) -> torch.Tensor:
    """Return signed buckets: a distance's own up to half of `count`, then ranges that grow."""
    half = count // 2
    far = distances.abs().clamp(min=half).float()
    grown = torch.log(far / half) / torch.log(torch.tensor((reach - 1) / half)) * (half - 1)
    shared = (torch.ceil(grown) + half).long() * distances.sign()
    return torch.where(distances.abs() <= half, distances, shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundRows(Around):
    """A layer's extra inputs: vectors of distances and their norm, and for each row (first token,
    end, buckets of queries and keys)."""

    relative: RelativeStates
    norm: nn.Module | None
    rows: list[tuple[int, int, torch.Tensor]]


class DebertaAttention(nn.Module):
    """Attention within each row, with products of states and positions."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        model = context.model
        self.name = name
        self.qkv_proj, self.o_proj = attention_linears(context, name, qkv_bias=True, out_bias=True)
        terms = _terms(model.hf_config)
        self.reads_positions, self.is_read = "c2p" in terms, "p2c" in terms
        self.scale = 1 / math.sqrt(model.head_size * (1 + len(terms)))

    def forward(self, x: torch.Tensor, residual: torch.Tensor, around: AroundRows) -> torch.Tensor:
        """Return residual plus attention's output. Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v = self.qkv_proj.forward_split(x)
        products = around.relative.products(self.name, self.qkv_proj, around.norm)
        out = torch.empty_like(q)
        for first, end, buckets in around.rows:
            own_q, own_k, own_v = (self._heads(part[first:end]) for part in (q, k, v))
            attended = self._row(own_q, own_k, own_v, products, buckets)
            out[first:end] = attended.transpose(0, 1).flatten(1)
        return self.o_proj(out, residual)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [S, H*D] -> [H, S, D]"""
        return x.unflatten(-1, (self.qkv_proj.num_heads, -1)).transpose(0, 1)

    def _row(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        products: Products,
        buckets: torch.Tensor,
    ) -> torch.Tensor:
        """Attend one row, some queries at a time. Shapes: q, k, v [H, S, D], buckets [S, S] ->
        [H, S, D]"""
        own_q, own_k = products
        by_key = torch.matmul(k, own_q).transpose(1, 2) if self.is_read else None
        out = torch.empty_like(q)
        for start in range(0, q.shape[1], CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            index = buckets[part].expand(len(q), -1, -1)
            scores = torch.matmul(q[:, part], k.transpose(1, 2))
            if self.reads_positions:
                scores += torch.matmul(q[:, part], own_k).gather(2, index)
            if by_key is not None:
                scores += by_key.gather(1, index)
            weights = (scores.float() * self.scale).softmax(dim=-1).to(v.dtype)
            out[:, part] = torch.matmul(weights, v)
        return out


def _terms(facts: Mapping[str, Any]) -> set[str]:
    """Return which products with positions scores have: c2p, p2c."""
    said = facts.get("pos_att_type") or ()
    words = said.lower().split("|") if isinstance(said, str) else said
    return {str(word).strip() for word in words} & {"c2p", "p2c"}


class DebertaLayer(EncoderLayer):
    """A layer of DeBERTa."""

    def build_attention(
        self, context: BuildContext, name: str, config: EncoderConfig, layer: int
    ) -> nn.Module:
        """Return attention that computes each row by itself."""
        return DebertaAttention(context, name)


class DebertaV2Model(BertModel):
    """DeBERTa v2 and v3, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="DeBERTa v2 and v3", source="https://arxiv.org/abs/2111.09543")
    layer_class = DebertaLayer
    prefixes = ("deberta.",)
    renames = (
        ("encoder.rel_embeddings.", "relative."),
        ("encoder.LayerNorm.", "relative_norm."),
        *RENAMES,
    )
    fused = FUSED

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        config = self.encoder_config(context.model)
        is_normed = "layer_norm" in str(context.model.hf_config.get("norm_rel_ebd")).lower()
        self.relative = RelativeStates(context)
        self.relative_norm = encoder_norm(context, config) if is_normed else None

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how it differs from BERT. Raises: ConfigError for unsupported settings"""
        facts = model.hf_config
        unusual = {
            "absolute attention": not facts["relative_attention"] or not _terms(facts),
            "matrices of positions' own": not facts.get("share_att_key"),
            "a convolution behind the first layer": facts.get("conv_kernel_size"),
            "word vectors of another size": facts.get("embedding_size", model.hidden_size)
            != model.hidden_size,
        }
        found = [words for words, is_there in unusual.items() if is_there]
        if found:
            raise ConfigError(f"{', '.join(found)}: not supported.", where="config.json")
        if not facts["position_biased_input"]:
            return usual_encoder(model, num_positions=0)
        return usual_encoder(model)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the classifier: of a prompt through the pooler's matrix, of tokens without."""
        if context.model.head != CLASSES:
            return super().build_head(context)
        return DenseClasses(context, act=context.model.hf_config["pooler_hidden_act"])

    def around(self, positions: torch.Tensor) -> Mapping[str, Around]:
        """Return the layers' extra inputs; a row begins at each position 0."""
        starts = (positions == 0).nonzero().flatten().tolist()
        bounds = pairwise([*starts, len(positions)])
        rows = [(first, end, self.relative.buckets(end - first)) for first, end in bounds]
        return {ONE_KIND: AroundRows(relative=self.relative, norm=self.relative_norm, rows=rows)}
