"""The decoder that most families share: pre-norm layers of rotary attention and a gated MLP.

Such a model computes, for the T tokens of a step (H query heads, K kv heads, D head size):

    x = embed_tokens(token_ids)                          # [T, E]
    for layer in layers:
        q, k, v = qkv_proj(input_layernorm(x))           # [T, H*D], [T, K*D], [T, K*D]
        q, k = rotary(q_norm(q), k_norm(k), positions)   # head norms only with qk_norm
        a = attention(q, k, v)                           # over this row's cached keys and values
        x = x + o_proj(a)
        gate, up = gate_up_proj(post_attention_layernorm(x))
        x = x + down_proj(act(gate) * up)
    logits = lm_head(norm(x))                            # [S, V], of the tokens that need them

A family derives from `DecoderForCausalLM` and describes its differences in a `DecoderConfig`. It
replaces a class to compute something else: `DecoderLayer.build_mlp` for another feed-forward part,
a `DecoderLayer` for norms in other places (layers/post_norm.py) or for layers with recurrent states
(layers/mixers/hybrid.py), a `DecoderModel` for other positions. Parameters have the
checkpoint's names, except as `weight_map` says. How to: docs/tutorials/add_a_model_family.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.quantization import Gate
from dovetail.layers.attention import Attention
from dovetail.layers.attention.alibi import own_slopes
from dovetail.layers.attention.rotary import HeadRotary, Rope, Rotary, Unrotated, rope_settings
from dovetail.layers.context import keep_inner
from dovetail.layers.decoder_head import HEAD, HeadedDecoder, class_score, generates, lm_head
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import (
    ActivatedLinear,
    GatedLinear,
    QKVParallelLinear,
    RowParallelLinear,
    attention_linears,
)
from dovetail.layers.linear.placement import Part
from dovetail.layers.media import SpatialRotary, is_spatial, with_deep_media, with_media
from dovetail.layers.norm import RMSNorm
from dovetail.layers.repeated import of_tensors
from dovetail.layers.stages import Stage

FULL, SLIDING = "full_attention", "sliding_attention"
CHUNKED = "chunked_attention"
"""The layer types, as spelled in config.json's `layer_types`."""
UNROTATED = "unrotated"
"""The rotation name of layers without positions."""

FUSED: dict[str, tuple[str, str]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}
"""Checkpoint names that are parts of one matrix here (see WeightMap.fused)."""
BARE = tuple((name, f"model.{name}") for name in ("embed_tokens.", "layers.", "norm."))
"""Names in checkpoints that were saved without a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """How a family differs from the plain decoder.

    `layer_types` holds each layer's attention, `window_tokens` the window of sliding layers,
    `chunk_tokens` the length of the chunks of chunked ones. `qk_norm`: the heads of q and k are
    normed. `query_scale` None is 1 / sqrt(D). `attn_logit_softcap` and `final_logit_softcap` c bend
    a logit l to c * tanh(l / c). `embedding_scale` multiplies the token vectors. `is_tied`: the
    head is the embedding's table.

    `norm` makes a norm of (context, size, eps=); `head_norm` makes one norm of all heads together
    instead of a `norm` of each. `norms_turned`: heads are normed after rotation. `qkv_clip` bounds
    the output of qkv_proj. `rope_theta` and `rotary_share` are defaults for config.json; pairs of
    features may be interleaved; `unrotated` has the numbers of layers without positions. Without a
    gate the MLP is down(act(up)); `inner_size` is its inner size (None: config.json's
    intermediate_size). `parallel_norms`: 0, the MLP reads the residual after attention;
    else both read the layer's input, through one norm, or two. With `alibi_slopes`, of all ranks'
    heads, no layer is rotated (layers/attention/alibi.py).

    `branch_scale` multiplies the outputs of attention and MLP. It costs nothing: the residual is
    stored divided by it, which the norms undo (with `norm_eps` divided by its square).
    """

    layer_types: tuple[str, ...]
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    norm: Callable[..., Any] = RMSNorm
    norm_eps: float = 1e-6
    hidden_act: str = "silu"
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    has_head_bias: bool = False
    is_gated: bool = True
    inner_size: int | None = None
    qk_norm: bool = False
    head_norm: Callable[..., nn.Module] | None = None
    norms_turned: bool = False
    qkv_clip: float | None = None
    rope_theta: float = 10000.0
    rotary_share: float = 1.0
    is_interleaved: bool = False
    unrotated: frozenset[int] = frozenset()
    alibi_slopes: tuple[float, ...] | None = None
    parallel_norms: int = 0
    branch_scale: float = 1.0
    query_scale: float | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    logit_scale: float = 1.0
    embedding_scale: float = 1.0
    is_tied: bool = False

    def build_norm(self, context: BuildContext) -> Any:
        """Return a norm of hidden states."""
        eps = self.norm_eps / self.branch_scale**2
        return self.norm(context, context.model.hidden_size, eps=eps)


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
    """Return the fields of a family whose layers all use a sliding window when one is given."""
    window = model.hf_config.get("sliding_window") or None
    layer_type = SLIDING if window else FULL
    return {"layer_types": (layer_type,) * model.num_layers, "window_tokens": window}


def windows_by_layer(model: ModelSpec, *, every: int) -> dict[str, Any]:
    """Return the fields of a family whose config.json lists the layer types. Without a list, all
    layers slide except each `every`th (0: all are full)."""
    config = model.hf_config
    derived = [SLIDING if every and (i + 1) % every else FULL for i in range(model.num_layers)]
    layer_types = tuple(config.get("layer_types") or derived)
    return {"layer_types": layer_types, "window_tokens": config.get("sliding_window") or None}


class DecoderAttention(nn.Module):
    """Rotary attention with grouped kv heads, and head norms if the config says so. `kinds` are the
    layer types that it supports."""

    kinds: ClassVar[tuple[str, ...]] = (FULL, SLIDING, CHUNKED)

    qkv_class: ClassVar[type[QKVParallelLinear]] = QKVParallelLinear
    attention_class: ClassVar[type[Attention]] = Attention

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        model = context.model
        self.qkv_proj, self.o_proj = attention_linears(
            context,
            name,
            qkv_bias=config.has_qkv_bias,
            out_bias=config.has_out_bias,
            qkv_class=self.qkv_class,
        )
        self.q_norm = self.build_head_norm(context, config, self.qkv_proj.parts[0])
        self.k_norm = self.build_head_norm(context, config, self.qkv_proj.parts[1])
        self._clip = config.qkv_clip
        self.rotate = HeadRotary(
            context,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            is_interleaved=config.is_interleaved,
            norms_turned=config.norms_turned,
        )
        self.attn = self.attention_class(name, self.attention_spec(model, config, layer))

    def build_head_norm(
        self, context: BuildContext, config: DecoderConfig, part: Part
    ) -> nn.Module | None:
        """Return a norm of query or key heads (this rank's `part`), None in families without."""
        if not config.qk_norm:
            return None
        size, eps = context.model.head_size, config.norm_eps
        if config.head_norm is not None:
            return config.head_norm(context, part, size, eps=eps)
        one_of_each: nn.Module = config.norm(context, size, eps=eps)
        return one_of_each

    def attention_spec(self, model: ModelSpec, config: DecoderConfig, layer: int) -> AttentionSpec:
        """Return the spec of this layer's attention: this rank's heads, scale, window, soft cap."""
        kind = config.layer_types[layer]
        queries = self.qkv_proj.parts[0]
        if kind not in self.kinds:
            raise ConfigError(
                f'layer {layer} is of the type "{kind}", which these layers cannot be.',
                where="config.json: layer_types",
                fix=f"use {', '.join(self.kinds)}.",
            )
        return AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=config.query_scale or model.head_size**-0.5,
            window_tokens=config.window_tokens or None if kind == SLIDING else None,
            chunk_tokens=config.chunk_tokens if kind == CHUNKED else None,
            soft_cap=config.attn_logit_softcap,
            is_causal=model.is_causal,
            alibi_slopes=own_slopes(config.alibi_slopes, queries, model.head_size),
        )

    def forward(
        self, x: torch.Tensor, rope: Rope | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]. Without `rope`, no rotation."""
        qkv = self.qkv_proj(x)
        if self._clip is not None:
            (qkv,) = of_tensors(self._clipped, qkv)
        q, k, v = self.rotate(qkv, rope)
        return self.o_proj(self.attn(q, k, v), residual)

    def _clipped(self, qkv: torch.Tensor) -> tuple[torch.Tensor]:
        assert self._clip is not None, "nothing bounds q, k and v"
        return (qkv.clamp(-self._clip, self._clip),)


class GatedMLP(nn.Module):
    """act(gate(x)) * up(x), then down."""

    def __init__(
        self, context: BuildContext, name: str, *, inner: int, act: str | Gate, bias: bool = False
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


class PlainMLP(nn.Module):
    """act(up(x)), then down."""

    def __init__(
        self, context: BuildContext, name: str, *, inner: int, act: str, bias: bool = False
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.up_proj = ActivatedLinear(context, f"{name}.up_proj", size, inner, act=act, bias=bias)
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size, bias=bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.down_proj(self.up_proj(x), residual)


class DecoderLayer(nn.Module):
    """One layer: attention and MLP, each after a norm, each added to its input."""

    mlp_name: ClassVar[str] = "mlp"
    """The feed-forward part's name in the checkpoint."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer_type = config.layer_types[layer]
        self.rope = UNROTATED if layer in config.unrotated else self.layer_type
        self.parallel_norms = config.parallel_norms
        self.self_attn = self.build_attention(context, f"{name}.self_attn", config, layer)
        self.mlp = self.build_mlp(context, f"{name}.{self.mlp_name}", config, layer)
        self.build_norms(context, config)

    def build_norms(self, context: BuildContext, config: DecoderConfig) -> None:
        """Create the norms of this layer's hidden states. Mutates: self"""
        self.input_layernorm = config.build_norm(context)
        if config.parallel_norms != 1:
            self.post_attention_layernorm = config.build_norm(context)

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention: a module of (x, rope, residual), x and residual [T, E]."""
        return DecoderAttention(context, name, config, layer)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part: a module of (x, residual), both [T, E]."""
        inner = config.inner_size or int(context.model.hf_config["intermediate_size"])
        mlp = GatedMLP if config.is_gated else PlainMLP
        return mlp(context, name, inner=inner, act=config.hidden_act, bias=config.has_mlp_bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]. `ropes` holds a rotation per rotated layer type."""
        normed, rope = self.input_layernorm(x), ropes.get(self.rope)
        if not self.parallel_norms:
            x = self.self_attn(normed, rope, x)
            return self.mlp(self.post_attention_layernorm(x), x)
        other = normed if self.parallel_norms == 1 else self.post_attention_layernorm(x)
        return self.mlp(other, self.self_attn(normed, rope, x))


class DecoderModel(nn.Module):
    """Embedding, layers and the final norm, as far as they belong to this rank's stage. `inner`
    receives the inputs of the layers whose numbers are its keys (None: of none)."""

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
                factor=config.embedding_scale / config.branch_scale,
            ),
            is_tied=config.is_tied,
        )
        self.layers = stage.layers(lambda i: layer_class(context, f"{name}.layers.{i}", config, i))
        self.norm = stage.last(lambda: config.build_norm(context))
        self.config = config
        kinds = enumerate(config.layer_types)
        rotated = {kind for layer, kind in kinds if layer not in config.unrotated}
        self.rotaries = self.build_rotaries(context, rotated)
        if config.unrotated and config.qk_norm:
            self.rotaries[UNROTATED] = Unrotated(context.device)

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return a rotary table per layer type; here one for all. A missing type is not rotated.
        `layer_types` are the types with rotated layers."""
        if self.config.alibi_slopes:
            return nn.ModuleDict()
        theta, share = self.config.rope_theta, self.config.rotary_share
        settings = rope_settings(context, theta=theta, share=share)
        rotary_class = SpatialRotary if is_spatial(settings) else Rotary
        rotary = rotary_class(settings, context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.embed_tokens(token_ids)

    def layer_arguments(
        self, x: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[Any, ...]:
        """Return further arguments of layers, besides states and rotations; none here. x is the
        first layer's input. Shapes: x [T, E], token_ids and positions [T]"""
        return ()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        stage = self.stage
        if stage.is_first:
            x = with_media(self.embed(token_ids, positions), self.config.branch_scale)
        else:
            x = stage.received(token_ids)
        ropes = {name: rotary(positions) for name, rotary in self.rotaries.items()}
        more = self.layer_arguments(x, token_ids, positions)
        for number, layer in enumerate(self.layers):
            if self.inner is not None and number in self.inner:
                scale = self.config.branch_scale
                keep_inner(self.inner, number, x if scale == 1.0 else x * scale)
            x = layer(x, ropes, *more)
            if number in stage.numbers:
                x = with_deep_media(x, number)
        return self.norm(x)


class DecoderForCausalLM(HeadedDecoder):
    """A decoder with a head: the base class of these families' model plugins."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"tensor_parallel", "pipeline_parallel", "vectors"}
    )
    model_class: ClassVar[type[DecoderModel]] = DecoderModel
    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer
    draft_layer_class: ClassVar[type[DecoderLayer] | None] = None
    """The class of the layers that draft further tokens, if it is another one."""

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        config = self.decoder_config(model)
        if not generates(model):
            config = replace(config, is_tied=False)
        self.is_tied, self.is_gated = config.is_tied, config.is_gated
        self.model = self.model_class(context, "model", config, self.layer_class)
        stage = self.model.stage
        self.lm_head = lm_head(
            context,
            stage,
            tied=self.model.embed_tokens if config.is_tied else None,
            bias=config.has_head_bias,
            soft_cap=config.final_logit_softcap,
            scale=config.logit_scale,
        )
        self.score = self.build_score(context, stage)

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return this family's differences, read from its config."""
        return usual_config(model)

    def build_score(self, context: BuildContext, stage: Stage) -> nn.Module:
        """Return the classification head, if the model has classes."""
        return class_score(context, stage)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        tied = {"lm_head.weight": "model.embed_tokens.weight"} if self.is_tied else {}
        fused = {k: to for k, to in FUSED.items() if self.is_gated or to[0] != "gate_up_proj"}
        return WeightMap(prefixes=BARE, fused=fused, ignored=(".inv_freq",), tied=tied)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.model(token_ids, positions)
