"""The layers of Gemma 4's assistant, built from Gemma 4's own."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch
from torch import nn

from dovetail.config.checkpoint.rope import rope_of
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.drafter import DraftContext, TargetModel
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.attention import Attention
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import FUSED, SLIDING, DecoderConfig
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead
from dovetail_plugins.drafters._eagle_module import JoinedLinear
from dovetail_plugins.layers.attention.shared import SharedAttention
from dovetail_plugins.model_types.gemma4 import ROPE, cache, heads, layer_types
from dovetail_plugins.models._shared_kv import Heads, SharingAttention, sharing_config
from dovetail_plugins.models.gemma4 import Gemma4Layer

TABLE = "embed_tokens."


class AssistantAttention(SharingAttention):
    """Queries over what a layer of the model cached."""

    def _attention(
        self, name: str, config: DecoderConfig, layer: int, heads: Heads
    ) -> SharedAttention:
        kind = config.layer_types[layer]
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=heads.head_size,
            scale=config.query_scale or heads.head_size**-0.5,
            window_tokens=config.window_tokens if kind == SLIDING else None,
        )
        return SharedAttention(name, spec, shares="")

    def read_from(self, target: TargetModel, shares: str) -> None:
        """Attend to the cache of a layer of the model. Raises: ConfigError if it has heads of
        another shape. Mutates: self"""
        attn, source = self.attn, target.attention(shares)
        assert isinstance(attn, SharedAttention), "it keeps nothing"
        assert isinstance(source, Attention), "it is a layer that caches keys and values"
        own, theirs = (
            (spec.num_kv_heads, spec.head_size, spec.window_tokens)
            for spec in (attn.spec, source.spec)
        )
        if own != theirs:
            raise ConfigError(
                f"the assistant's layers are for KV heads, sizes and windows of {own}, and the "
                f"model's layer {shares} has {theirs}.",
                where="--speculative-config.model",
                fix="use the assistant of this model, divided over its ranks.",
            )
        attn.shares = shares
        attn.read_from(source)


class AssistantLayer(Gemma4Layer):
    """A layer with queries alone."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return attention over a cache that is not its own."""
        count, size = heads(context.model.hf_config, layer)
        own = Heads(num_kv_heads=count, head_size=size, source=-1)
        return AssistantAttention(context, name, config, layer, own)


class OrderedHead(nn.Module):
    """Logits of the tokens in the likeliest of several equal groups. `token_ordering` has the
    groups' tokens, one after the other; `centroids` say how likely each is."""

    def __init__(self, context: BuildContext, vocab_size: int, size: int) -> None:
        super().__init__()
        config, dtype = context.model.hf_config, dtype_of(context.model.dtype)
        count = int(config["num_centroids"])
        self.num_picked = min(int(config["centroid_intermediate_top_k"]), count)
        self.centroids = ReplicatedLinear(context, "head.centroids", size, count)
        table = torch.empty(vocab_size, size, dtype=dtype, device=context.device)
        self.table = nn.Parameter(table, requires_grad=False)
        order = torch.empty(vocab_size, dtype=torch.int64, device=context.device)
        self.token_ordering = nn.Parameter(order, requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Shapes: [S, E] -> [S, V], -inf for tokens of other groups"""
        groups = self.token_ordering.view(self.centroids.spec.out_size, -1)
        best = self.centroids(states).topk(self.num_picked, dim=-1).indices
        tokens = groups[best].flatten(1)
        logits = torch.einsum("se,ste->st", states, self.table[tokens])
        found = logits.new_full((len(states), len(self.table)), -torch.inf)
        return found.scatter_(1, tokens, logits)


class AssistantModule(nn.Module):
    """pre_projection over [vector; state], Gemma 4's layers and norm; post_projection makes the
    state that the next token continues, a head the logits."""

    def __init__(self, context: DraftContext) -> None:
        super().__init__()
        build, target = context.build, context.target
        size, self._width = build.model.hidden_size, target.spec.hidden_size
        settings = {**build.model.hf_config, "hidden_size_per_layer_input": 0}
        build = replace(build, model=msgspec.structs.replace(build.model, hf_config=settings))
        config = sharing_config(build.model, layer_types(settings))
        wide = self._width
        self.pre_projection = JoinedLinear(build, "pre_projection", (wide, wide), size, bias=False)
        self.layers = nn.ModuleList(
            AssistantLayer(build, f"layers.{i}", config, i) for i in range(build.model.num_layers)
        )
        self.norm = config.build_norm(build)
        self.post_projection = ReplicatedLinear(build, "post_projection", size, wide)
        self.is_ordered = bool(settings.get("use_ordered_embeddings"))
        vocab_size = build.model.vocab_size
        self.head: nn.Module = (
            OrderedHead(build, vocab_size, size)
            if self.is_ordered
            else LogitsHead(build, "head", vocab_size, size)
        )
        self.rotaries = _rotaries(build, config)
        _connect(self.layers, config, target)

    def weight_map(self) -> WeightMap:
        """Return the names: Gemma 4's, without the head that is the token table."""
        table = "head.table" if self.is_ordered else "head.weight"
        own = (
            ("model.embed_tokens.weight", table),
            ("masked_embedding.", "head."),
            ("model.", ""),
        )
        return WeightMap(prefixes=own, fused=FUSED, ignored=("lm_head.", "rotary_emb."))

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """Return the states of the model, and its own behind them. A token is rotated to its own
        position, which is one on. Shapes: vectors [T, E], positions [T], states [T, E or more] ->
        [T, E + own size]"""
        x = self.pre_projection(vectors, states[:, : self._width])
        ropes: dict[str, Rope] = {
            kind: rotary(positions + 1) for kind, rotary in self.rotaries.items()
        }
        for layer in self.layers:
            x = layer(x, ropes)
        x = self.norm(x)
        return torch.cat([self.post_projection(x), x], dim=-1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Shapes: states [S, E + own size] -> [S, V]"""
        found: torch.Tensor = self.head(states[:, self._width :].contiguous())
        return found


def _rotaries(context: BuildContext, config: DecoderConfig) -> nn.ModuleDict:
    """Return a rotary table per kind of layer: full ones have heads of another size."""
    model, kinds = context.model, config.layer_types
    settings = {**model.hf_config, "rope_parameters": rope_of(model.hf_config) or ROPE}
    context = replace(context, model=msgspec.structs.replace(model, hf_config=settings))
    sizes = {kind: heads(settings, kinds.index(kind))[1] for kind in sorted(set(kinds))}
    tables = {kind: rope_settings(context, kind=kind, head_size=n) for kind, n in sizes.items()}
    return nn.ModuleDict({kind: Rotary(one, context.device) for kind, one in tables.items()})


def _connect(layers: nn.ModuleList, config: DecoderConfig, target: TargetModel) -> None:
    """Let each layer read the cache of the model's last layer of its kind that has one. Mutates:
    the layers"""
    theirs = target.spec.hf_config
    last = {layer_types(theirs)[number]: number for number in sorted(set(cache(theirs).sources))}
    for layer, kind in zip(layers, config.layer_types, strict=True):
        attention = layer.self_attn
        assert isinstance(attention, AssistantAttention), "it is an assistant's layer"
        attention.read_from(target, f"model.layers.{last[kind]}.self_attn")
