"""The decoder that most families share: pre-norm layers of rotary attention and a gated MLP.

A model of it computes, for the T tokens of a step (H query heads, K kv heads, D head size):

    x = embed_tokens(token_ids)                          # [T, E]
    for layer in layers:
        q, k, v = qkv_proj(input_layernorm(x))           # [T, H*D], [T, K*D], [T, K*D]
        q, k = rotary(q_norm(q), k_norm(k), positions)   # norms of heads where qk_norm says so
        a = attention(q, k, v)                           # over this row's cached keys and values
        x = x + o_proj(a)
        gate, up = gate_up_proj(post_attention_layernorm(x))
        x = x + down_proj(act(gate) * up)
    logits = lm_head(norm(x))                            # [S, V], of the tokens that need them

A family derives from `DecoderForCausalLM`, says in a `DecoderConfig` how it differs, and replaces a
class where it computes something else: `DecoderLayer.build_mlp` for another feed-forward part, a
`DecoderLayer` for other norms, a `DecoderModel` for other positions. Parameter names are those of
the checkpoints; `weight_map` says where they differ. How to: docs/tutorials/add_a_model_family.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.attention import Attention
from dovetail.layers.decoder_head import class_score, generates
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import GatedLinear, RowParallelLinear, attention_linears
from dovetail.layers.logits import LogitsHead
from dovetail.layers.norm import RMSNorm
from dovetail.layers.rotary import HeadRotary, Rope, Rotary, rope_settings
from dovetail.layers.stages import Stage, made_if

HEAD = "lm_head"
FULL, SLIDING = "full_attention", "sliding_attention"
"""The layer types, as config.json's `layer_types` has them."""

FUSED: dict[str, tuple[str, str]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}
"""Names of checkpoints that are parts of one matrix here (see WeightMap.fused)."""
BARE = tuple((name, f"model.{name}") for name in ("embed_tokens.", "layers.", "norm."))
"""Names of checkpoints that were saved without a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """How a family differs from the plain decoder.

    `layer_types` holds each layer's attention, `window_tokens` the window of the sliding ones.
    `qk_norm`: the heads of q and k are normed. `query_scale` None is 1 / sqrt(D).
    `attn_logit_softcap` and `final_logit_softcap` c bend a logit l to c * tanh(l / c).
    `embedding_scale` multiplies the token vectors. `is_tied`: the head is the embedding's table.
    """

    layer_types: tuple[str, ...]
    window_tokens: int | None = None
    norm: type[RMSNorm] = RMSNorm
    norm_eps: float = 1e-6
    hidden_act: str = "silu"
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    qk_norm: bool = False
    query_scale: float | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float = 1.0
    is_tied: bool = False


def usual_config(model: ModelSpec, **changes: Any) -> DecoderConfig:
    """Return the DecoderConfig of a config.json with the usual fields, with `changes` applied."""
    config = model.hf_config
    has_bias = bool(config.get("attention_bias", False))
    fields: dict[str, Any] = {
        "layer_types": (FULL,) * model.num_layers,
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "hidden_act": config.get("hidden_act") or "silu",
        "has_qkv_bias": has_bias,
        "has_out_bias": has_bias,
        "has_mlp_bias": bool(config.get("mlp_bias", False)),
        "is_tied": bool(config.get("tie_word_embeddings", False)),
    }
    return DecoderConfig(**{**fields, **changes})


def window_in_all_layers(model: ModelSpec) -> dict[str, Any]:
    """Return the fields of a family that slides in all layers when a window is given."""
    window = model.hf_config.get("sliding_window") or None
    layer_type = SLIDING if window else FULL
    return {"layer_types": (layer_type,) * model.num_layers, "window_tokens": window}


class DecoderAttention(nn.Module):
    """Rotary attention with grouped kv heads, and norms on each head where the config says so."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        model = context.model
        self.qkv_proj, self.o_proj = attention_linears(
            context, name, qkv_bias=config.has_qkv_bias, out_bias=config.has_out_bias
        )
        self.q_norm = self.build_head_norm(context, config)
        self.k_norm = self.build_head_norm(context, config)
        self.rotate = HeadRotary(
            context,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        self.attn = Attention(name, self.attention_spec(model, config, layer))

    def build_head_norm(self, context: BuildContext, config: DecoderConfig) -> RMSNorm | None:
        """Return a norm of query or key heads, None in families without."""
        if not config.qk_norm:
            return None
        return config.norm(context, context.model.head_size, eps=config.norm_eps)

    def attention_spec(self, model: ModelSpec, config: DecoderConfig, layer: int) -> AttentionSpec:
        """Return the spec of this layer's attention: this rank's heads, scale, window, soft cap."""
        is_sliding = config.layer_types[layer] == SLIDING
        return AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=config.query_scale or model.head_size**-0.5,
            window_tokens=config.window_tokens if is_sliding else None,
            soft_cap=config.attn_logit_softcap,
            is_causal=model.is_causal,
        )

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]. Without `rope` nothing is rotated."""
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        return self.o_proj(self.attn(q, k, v), residual)


class GatedMLP(nn.Module):
    """act(gate(x)) * up(x), then down."""

    def __init__(
        self, context: BuildContext, name: str, *, inner: int, act: str, bias: bool = False
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.gate_up_proj = GatedLinear(
            context, f"{name}.gate_up_proj", size, inner, act=act, bias=bias
        )
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size, bias=bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.down_proj(self.gate_up_proj(x), residual)


class DecoderLayer(nn.Module):
    """One layer: attention and MLP, each behind a norm, each added to its input."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.layer_type = config.layer_types[layer]
        self.self_attn = self.build_attention(context, f"{name}.self_attn", config, layer)
        self.mlp = self.build_mlp(context, f"{name}.mlp", config, layer)
        self.input_layernorm = config.norm(context, size, eps=config.norm_eps)
        self.post_attention_layernorm = config.norm(context, size, eps=config.norm_eps)

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention: a module of (x, rope, residual), x and residual [T, E]."""
        return DecoderAttention(context, name, config, layer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part: a module of (x, residual), both [T, E]."""
        inner = int(context.model.hf_config["intermediate_size"])
        return GatedMLP(context, name, inner=inner, act=config.hidden_act, bias=config.has_mlp_bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]. `ropes` holds a rotation per layer type that has one."""
        x = self.self_attn(self.input_layernorm(x), ropes.get(self.layer_type), x)
        return self.mlp(self.post_attention_layernorm(x), x)


class DecoderModel(nn.Module):
    """Embedding, layers and the last norm, as far as they belong to this rank's stage. The inputs
    of the layers whose numbers are in `inner` are kept there (None: of none)."""

    inner: dict[int, torch.Tensor | None] | None = None

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = DecoderLayer,
    ) -> None:
        super().__init__()
        model = context.model
        self.stage = stage = Stage(context)
        self.embed_tokens = stage.table(
            lambda: VocabParallelEmbedding(
                context,
                model.vocab_size,
                model.hidden_size,
                head=HEAD if config.is_tied else None,
                factor=config.embedding_scale,
            ),
            is_tied=config.is_tied,
        )
        self.layers = stage.layers(lambda i: layer_class(context, f"{name}.layers.{i}", config, i))
        self.norm = stage.last(lambda: config.norm(context, model.hidden_size, eps=config.norm_eps))
        self.rotaries = self.build_rotaries(context, set(config.layer_types))

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table per layer type; here one for all. A type without is not rotated."""
        rotary = Rotary(rope_settings(context), context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.embed_tokens(token_ids)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        stage = self.stage
        x = self.embed(token_ids, positions) if stage.is_first else stage.received(token_ids)
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        for number, layer in enumerate(self.layers):
            if self.inner is not None and number in self.inner:
                self.inner[number] = x
            x = layer(x, ropes)
        return self.norm(x)


class DecoderForCausalLM(nn.Module, Model):
    """A decoder with a head on it: what the model plugins of these families derive from."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel", "pipeline_parallel"})
    model_class: ClassVar[type[DecoderModel]] = DecoderModel
    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        config = self.decoder_config(model)
        if not generates(model):
            config = replace(config, is_tied=False)
        self.is_tied = config.is_tied
        self.model = self.model_class(context, "model", config, self.layer_class)
        stage = self.model.stage
        self.lm_head = made_if(
            generates(model) and stage.is_last,
            lambda: LogitsHead(
                context,
                HEAD,
                model.vocab_size,
                model.hidden_size,
                tied=self.model.embed_tokens if config.is_tied else None,
                soft_cap=config.final_logit_softcap,
            ),
        )
        self.score = self.build_score(context, stage)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return how this family differs, read from its config."""
        return usual_config(model)

    def build_score(self, context: BuildContext, stage: Stage) -> nn.Module:
        """Return what makes numbers of classes of hidden states, where the model has classes."""
        return class_score(context, stage)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        tied = {"lm_head.weight": "model.embed_tokens.weight"} if self.is_tied else {}
        return WeightMap(prefixes=BARE, fused=FUSED, ignored=("rotary_emb.inv_freq",), tied=tied)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.model(token_ids, positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        return self.lm_head(hidden)

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes. Shapes: pooled [S, E] -> [S, C]"""
        found: torch.Tensor = self.score(pooled)
        return found
