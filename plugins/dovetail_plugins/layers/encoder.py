"""The encoder shared by BERT and related models: every token sees all others, post-norm.

A model of it computes, for the T tokens of a step (H heads, D head size):

    x = norm(words(token_ids) + positions + types)     # [T, E]
    for layer in layers:
        q, k, v = qkv_proj(x)                           # [T, H*D] each, rotated if so configured
        a = attention(q, k, v)                          # over all tokens of this row
        x = attention_norm(x + o_proj(a))
        x = output_norm(x + down_proj(up_proj(x)))      # up_proj ends in the activation

With pre-norm (`has_norms_before`) a layer is as follows, and a final norm follows the last one:

        x = x + o_proj(attention(qkv_proj(attention_norm(x))))
        x = x + down_proj(up_proj(output_norm(x)))

A family derives from `EncoderModel`, says in an `EncoderConfig` how it differs, and in `weight_map`
how its checkpoints name the parts. The head on the hidden states is its own: `classes`.
Source: Devlin et al., BERT, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.config.checkpoint.model_facts import unused_positions
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, Model
from dovetail.layers.attention import Attention
from dovetail.layers.attention.alibi import own_slopes
from dovetail.layers.attention.rotary import HeadRotary, Rope, Rotary, rope_settings
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear import (
    ActivatedLinear,
    GatedLinear,
    QKVParallelLinear,
    RowParallelLinear,
    attention_linears,
)
from dovetail.layers.media import with_media
from dovetail.layers.native import runs_natively
from dovetail.layers.norm import LayerNorm, RMSNorm
from dovetail.layers.opaque import is_traced
from dovetail_kernels import embedding
from dovetail_kernels.embedding.native import LookUp
from dovetail_plugins.layers.attention.dense import DenseAttention
from dovetail_plugins.layers.attention.position_bias import PositionBias
from dovetail_plugins.layers.class_head import class_linear


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """How a family differs from BERT.

    `num_positions` is the number of rows of the position table (0: there is none); the first
    `position_offset` precede that of the first token. `num_types` is the number of distinguished
    texts in a prompt (0: there is no type table). `layer_types` names the kind of each layer, ()
    for one kind: layers of a kind share a rotation (`EncoderModel.build_rotaries`) and a window
    (`windows`, of those that have one). `is_gated`: the inner layer is act(gate) * up. `scale` of
    attention: None for one over the root of the head size. `alibi_slopes` include all ranks' heads
    (layers/attention/alibi.py).
    """

    inner_size: int
    num_positions: int
    position_offset: int = 0
    num_types: int = 2
    hidden_act: str = "gelu"
    norm_eps: float = 1e-12
    is_gated: bool = False
    is_rotary: bool = False
    has_norms_before: bool = False
    has_rms_norms: bool = False
    has_norm_bias: bool = True
    has_qkv_bias: bool = True
    has_out_bias: bool = True
    has_up_bias: bool = True
    has_down_bias: bool = True
    scale: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    qkv_class: type[QKVParallelLinear] = QKVParallelLinear
    layer_types: tuple[str, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)


def usual_encoder(model: ModelSpec, **changes: Any) -> EncoderConfig:
    """Return the EncoderConfig of a config.json with the usual fields, with `changes` applied."""
    facts = model.hf_config
    fields: dict[str, Any] = {
        "inner_size": int(facts["intermediate_size"]),
        "num_positions": model.max_position_tokens + unused_positions(facts),
        "position_offset": unused_positions(facts),
        "num_types": int(facts.get("type_vocab_size", 2)),
        "hidden_act": facts.get("hidden_act") or "gelu",
        "norm_eps": float(facts.get("layer_norm_eps", 1e-12)),
    }
    return EncoderConfig(**{**fields, **changes})


ONE_KIND = "all"
"""The kind of layers if there is only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """A layer's inputs besides hidden states: the tokens' rotation, and score biases.

    Shapes: bias [H of this rank, 2 M - 1]
    """

    rope: Rope | None = None
    bias: torch.Tensor | None = None


def encoder_norm(context: BuildContext, config: EncoderConfig) -> nn.Module:
    """Return a norm over the hidden axis."""
    size, eps = context.model.hidden_size, config.norm_eps
    if config.has_rms_norms:
        return RMSNorm(context, size, eps=eps)
    return LayerNorm(context, size, eps=eps, bias=config.has_norm_bias)


class TypeEmbedding(nn.Module):
    """A vector for the tokens of each text of a prompt; most prompts have one text.
    Shapes: weight [number of texts, E]"""

    def __init__(self, context: BuildContext, num_types: int, size: int) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(num_types, size, dtype=dtype, device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self._native = LookUp(dtype) if runs_natively(embedding.OP, context) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with the types of the step's tokens added; x may change. Shapes: [T, E]"""
        second = None if len(self.weight) == 1 else forward_context().second_text
        if self._native is not None and not is_traced():
            return self._native(second, self.weight, onto=x)
        return x + (self.weight[0] if second is None else F.embedding(second, self.weight))


class EncoderEmbeddings(nn.Module):
    """Words, positions and types, summed and normed."""

    def __init__(self, context: BuildContext, config: EncoderConfig) -> None:
        super().__init__()
        model, size = context.model, context.model.hidden_size
        self.words = VocabParallelEmbedding(context, model.vocab_size, size)
        self.positions: PositionEmbedding | None = None
        if config.num_positions:
            count = config.num_positions - config.position_offset
            self.positions = PositionEmbedding(context, count, size, offset=config.position_offset)
        self.types = TypeEmbedding(context, config.num_types, size) if config.num_types else None
        self.norm = encoder_norm(context, config)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        x = with_media(self.words(token_ids))
        if self.positions is not None:
            x = self.positions(positions, x)
        if self.types is not None:
            x = self.types(x)
        return self.norm(x)


class EncoderAttention(nn.Module):
    """Attention among all tokens of a row."""

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        model = context.model
        self.qkv_proj, self.o_proj = attention_linears(
            context,
            name,
            qkv_bias=config.has_qkv_bias,
            out_bias=config.has_out_bias,
            qkv_class=config.qkv_class,
        )
        spec = self.attention_spec(model, config, layer)
        # In an encoder-decoder model, an encoder's items are not rows of a step.
        self.attn = Attention(name, spec) if model.encoder is None else DenseAttention(spec)
        self._turn: HeadRotary | None = None
        if config.is_rotary:
            self._turn = HeadRotary(
                context,
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_size=spec.head_size,
            )

    def attention_spec(self, model: ModelSpec, config: EncoderConfig, layer: int) -> AttentionSpec:
        """Return the spec of this layer's attention: this rank's heads, scale and window."""
        kind = config.layer_types[layer] if config.layer_types else ONE_KIND
        return AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=model.head_size**-0.5 if config.scale is None else config.scale,
            window_tokens=config.windows.get(kind),
            is_causal=False,
            alibi_slopes=own_slopes(config.alibi_slopes, self.qkv_proj.parts[0], model.head_size),
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor, around: Around) -> torch.Tensor:
        """Return residual plus attention's output. Shapes: x, residual [T, E] -> [T, E]"""
        if self._turn is None:
            q, k, v = self.qkv_proj.forward_split(x)
        else:
            q, k, v = self._turn(self.qkv_proj(x), around.rope)
        return self.o_proj(self.attn(q, k, v, bias=around.bias), residual)


class EncoderLayer(nn.Module):
    """One layer: attention and MLP, each added to its input, then normed."""

    gated_class: ClassVar[type[GatedLinear]] = GatedLinear

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.is_gated, self.has_norms_before = config.is_gated, config.has_norms_before
        self.attention = self.build_attention(context, f"{name}.attention", config, layer)
        self.attention_norm = self.first_norm(context, config, layer)
        self.add_mlp(context, name, config, layer)
        self.output_norm = encoder_norm(context, config)

    def add_mlp(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        """Create the matrices of the MLP. Mutates: self"""
        size, inner = context.model.hidden_size, config.inner_size
        if config.is_gated:
            self.gate_up_proj = self.gated_class(
                context,
                f"{name}.gate_up_proj",
                size,
                inner,
                act=config.hidden_act,
                bias=config.has_up_bias,
            )
        else:
            self.up_proj = ActivatedLinear(
                context,
                f"{name}.up_proj",
                size,
                inner,
                act=config.hidden_act,
                bias=config.has_up_bias,
            )
        self.down_proj = RowParallelLinear(
            context, f"{name}.down_proj", inner, size, bias=config.has_down_bias
        )

    def build_attention(
        self, context: BuildContext, name: str, config: EncoderConfig, layer: int
    ) -> nn.Module:
        """Return the attention among all tokens of a row."""
        return EncoderAttention(context, name, config, layer)

    def first_norm(self, context: BuildContext, config: EncoderConfig, layer: int) -> nn.Module:
        """Return attention's norm."""
        return encoder_norm(context, config)

    def forward(self, x: torch.Tensor, around: Around) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.has_norms_before:
            x = self.attention(self.attention_norm(x), x, around)
            return self.mlp(self.output_norm(x), x)
        x = self.attention_norm(self.attention(x, x, around))
        return self.output_norm(self.mlp(x, x))

    def mlp(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return residual plus the MLP's output. Shapes: x, residual [T, E] -> [T, E]"""
        inner = self.gate_up_proj(x) if self.is_gated else self.up_proj(x)
        return self.down_proj(inner, residual)


class EncoderModel(nn.Module, Model):
    """Base class of encoder plugins."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})
    whole_because = "stages pass on the states of decoders alone"
    layer_class: ClassVar[type[EncoderLayer]] = EncoderLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        config = self.encoder_config(context.model)
        self.embeddings = self.build_embeddings(context, config)
        start = "" if context.model.encoder is None else "encoder."
        self.layers = nn.ModuleList(
            self.layer_class(context, f"{start}layers.{i}", config, i)
            for i in range(context.model.num_layers)
        )
        self.layer_types = config.layer_types or (ONE_KIND,) * context.model.num_layers
        self.rotaries = self.build_rotaries(context) if config.is_rotary else nn.ModuleDict()
        self.position_bias = self.build_position_bias(context)
        self.final_norm = self.build_final_norm(context, config)
        self.head = self.build_head(context) if context.model.head else None

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how this family differs, read from its config."""
        return usual_encoder(model)

    def build_embeddings(self, context: BuildContext, config: EncoderConfig) -> nn.Module:
        """Return the module that computes the first states from token ids and positions."""
        return EncoderEmbeddings(context, config)

    def build_rotaries(self, context: BuildContext) -> nn.ModuleDict:
        """Return a rotation for each kind of layer; called for families with rotated heads."""
        return nn.ModuleDict({ONE_KIND: Rotary(rope_settings(context), context.device)})

    def build_position_bias(self, context: BuildContext) -> PositionBias | None:
        """Return the layers' common score bias by relative position: none."""
        return None

    def build_final_norm(self, context: BuildContext, config: EncoderConfig) -> nn.Module | None:
        """Return the final norm of pre-norm encoders."""
        return encoder_norm(context, config) if config.has_norms_before else None

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the module that computes class scores from pooled states: here one matrix."""
        return class_linear(context, "head")

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.embeddings(token_ids, positions)
        around = self.around(positions)
        for kind, layer in zip(self.layer_types, self.layers, strict=True):
            x = layer(x, around[kind])
        return x if self.final_norm is None else self.final_norm(x)

    def around(self, positions: torch.Tensor) -> Mapping[str, Around]:
        """Return the extra inputs for the layers of each kind. Shapes: positions [T]"""
        bias = None if self.position_bias is None else self.position_bias.table
        if not self.rotaries:
            return {ONE_KIND: Around(bias=bias)}
        return {
            kind: Around(rope=rotary(positions), bias=bias)
            for kind, rotary in self.rotaries.items()
        }

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes. Shapes: pooled [S, E] -> [S, C]"""
        assert self.head is not None, "a model has the head that its spec names"
        found: torch.Tensor = self.head(pooled)
        return found
