"""The encoder that BERT and its kin share: every token sees all others, norms stand behind sums.

A model of it computes, for the T tokens of a step (H heads, D head size):

    x = norm(words(token_ids) + positions + types)     # [T, E]
    for layer in layers:
        q, k, v = qkv_proj(x)                           # [T, H*D] each
        a = attention(q, k, v)                          # over all tokens of this row
        x = attention_norm(x + o_proj(a))
        x = output_norm(x + down_proj(act(up_proj(x))))

A family derives from `EncoderModel`, says in an `EncoderConfig` how it differs, and in `weight_map`
how its checkpoints name what is here. What stands on the hidden states is its own: `classes`.
Source: Devlin et al., BERT, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, Model
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.activation import activation
from dovetail.layers.attention import Attention
from dovetail.layers.class_head import class_linear
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from dovetail.layers.norm import LayerNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """How a family differs from BERT.

    `num_positions` counts the rows of the table of positions (0: there is none), of which
    `position_offset` come before that of the first token. `num_types` is the number of texts in a
    prompt that are told apart (0: there is no table of types).
    """

    inner_size: int
    num_positions: int
    position_offset: int = 0
    num_types: int = 2
    hidden_act: str = "gelu"
    norm_eps: float = 1e-12


def usual_encoder(model: ModelSpec, **changes: Any) -> EncoderConfig:
    """Return the EncoderConfig of a config.json with the usual fields, with `changes` applied."""
    facts = model.hf_config
    fields: dict[str, Any] = {
        "inner_size": int(facts["intermediate_size"]),
        "num_positions": model.max_position_tokens,
        "num_types": int(facts.get("type_vocab_size", 2)),
        "hidden_act": facts.get("hidden_act") or "gelu",
        "norm_eps": float(facts.get("layer_norm_eps", 1e-12)),
    }
    return EncoderConfig(**{**fields, **changes})


class TypeEmbedding(nn.Module):
    """A vector for the tokens of each text of a prompt; most prompts have one text.
    Shapes: weight [number of texts, E]"""

    def __init__(self, context: BuildContext, num_types: int, size: int) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(num_types, size, dtype=dtype, device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)

    def forward(self) -> torch.Tensor:
        """Return what is added to the tokens of the step. Shapes: -> [E] or [T, E]"""
        second = forward_context().second_text
        if second is None or len(self.weight) == 1:
            return self.weight[0]
        return F.embedding(second, self.weight)


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
        self.norm = LayerNorm(context, size, eps=config.norm_eps)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.words(token_ids)
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.types is not None:
            x = x + self.types()
        return self.norm(x)


class EncoderAttention(nn.Module):
    """Attention among all tokens of a row."""

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig) -> None:
        super().__init__()
        model = context.model
        self.qkv_proj = QKVParallelLinear(
            context,
            f"{name}.qkv_proj",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_heads,
            head_size=model.head_size,
            bias=True,
        )
        self.o_proj = RowParallelLinear(
            context,
            f"{name}.o_proj",
            model.num_heads * model.head_size,
            model.hidden_size,
            bias=True,
        )
        self.attn = Attention(name, self.attention_spec(model, config))

    def attention_spec(self, model: ModelSpec, config: EncoderConfig) -> AttentionSpec:
        """Return the spec of this layer's attention: this rank's heads and the scale."""
        return AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=model.head_size**-0.5,
            is_causal=False,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and what attention adds to it. Shapes: x [T, E] -> [T, E]"""
        return self.o_proj(self.attn(*self.qkv_proj.forward_split(x)), x)


class EncoderLayer(nn.Module):
    """One layer: attention and MLP, each added to its input, then normed."""

    def __init__(self, context: BuildContext, name: str, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        size, inner = context.model.hidden_size, config.inner_size
        self.attention = EncoderAttention(context, f"{name}.attention", config)
        self.attention_norm = LayerNorm(context, size, eps=config.norm_eps)
        self.up_proj = ColumnParallelLinear(context, f"{name}.up_proj", size, inner, bias=True)
        self.act = activation(config.hidden_act)
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size, bias=True)
        self.output_norm = LayerNorm(context, size, eps=config.norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        x = self.attention_norm(self.attention(x))
        return self.output_norm(self.down_proj(self.act(self.up_proj(x)), x))


class EncoderModel(nn.Module, Model):
    """An encoder: what the model plugins of these families derive from."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})
    layer_class: ClassVar[type[EncoderLayer]] = EncoderLayer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        config = self.encoder_config(context.model)
        self.embeddings = EncoderEmbeddings(context, config)
        self.layers = nn.ModuleList(
            self.layer_class(context, f"layers.{i}", config, i)
            for i in range(context.model.num_layers)
        )
        self.head = self.build_head(context) if context.model.head else None

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return how this family differs, read from its config."""
        return usual_encoder(model)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return what makes numbers of classes of pooled states: here one matrix."""
        return class_linear(context, "head")

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.embeddings(token_ids, positions)
        for layer in self.layers:
            x = layer(x)
        return x

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes. Shapes: pooled [S, E] -> [S, C]"""
        assert self.head is not None, "a model is built with the head that is asked for"
        found: torch.Tensor = self.head(pooled)
        return found
