"""The decoder that most families share: pre-norm blocks of rotary attention and a gated MLP.

A family says in a `Style` how it differs and replaces a class only where a flag would not be
honest. Parameter names are those of the checkpoints. Shape letters: T tokens of the step, E hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers import attention
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import GatedLinear, QKVParallelLinear, RowParallelLinear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.norm import RMSNorm
from dovetail.layers.rotary import HeadRotary, Rope, Rotary, rope_settings

HEAD = "lm_head"
FULL, SLIDING = "full_attention", "sliding_attention"

FUSED: dict[str, tuple[str, str]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a family differs from the plain decoder.

    `kinds` holds each layer's attention, `window_tokens` the window of the sliding ones.
    `query_scale` None is 1 / sqrt(D). `embedding_scale` multiplies the token vectors.
    """

    kinds: tuple[str, ...]
    window_tokens: int | None = None
    eps: float = 1e-6
    act: str = "silu"
    norm: type[RMSNorm] = RMSNorm
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    norms_heads: bool = False
    query_scale: float | None = None
    score_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    embedding_scale: float | None = None
    is_tied: bool = False


def plain_style(model: ModelSpec, **changes: Any) -> Style:
    """Return the style that a config describes by its common fields, with `changes` applied."""
    config = model.hf_config
    has_bias = bool(config.get("attention_bias", False))
    fields: dict[str, Any] = {
        "kinds": (FULL,) * model.num_layers,
        "eps": float(config.get("rms_norm_eps", 1e-6)),
        "act": config.get("hidden_act") or "silu",
        "has_qkv_bias": has_bias,
        "has_out_bias": has_bias,
        "has_mlp_bias": bool(config.get("mlp_bias", False)),
        "is_tied": bool(config.get("tie_word_embeddings", False)),
    }
    return Style(**{**fields, **changes})


def windowed_everywhere(model: ModelSpec) -> dict[str, Any]:
    """Return the style fields of a family that slides in all layers when a window is given."""
    window = model.hf_config.get("sliding_window")
    kind = SLIDING if window else FULL
    return {"kinds": (kind,) * model.num_layers, "window_tokens": window or None}


def windowed_by_switch(model: ModelSpec) -> dict[str, Any]:
    """Return the style fields of the Qwen families: a switch, and a number of full layers first."""
    config = model.hf_config
    if not config.get("use_sliding_window") or not config.get("sliding_window"):
        return {"kinds": (FULL,) * model.num_layers}
    first = int(config.get("max_window_layers", 28))
    derived = [FULL if i < first else SLIDING for i in range(model.num_layers)]
    return {
        "kinds": tuple(config.get("layer_types") or derived),
        "window_tokens": config["sliding_window"],
    }


class Attention(nn.Module):
    """Rotary attention with grouped kv heads, and norms on each head where the style says so."""

    def __init__(self, context: BuildContext, name: str, style: Style, layer: int) -> None:
        super().__init__()
        model = context.model
        self.head_size = model.head_size
        self.qkv_proj = QKVParallelLinear(
            context,
            f"{name}.qkv_proj",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            bias=style.has_qkv_bias,
        )
        self.o_proj = RowParallelLinear(
            context,
            f"{name}.o_proj",
            model.num_heads * model.head_size,
            model.hidden_size,
            bias=style.has_out_bias,
        )
        self.q_norm = self._head_norm(context, style)
        self.k_norm = self._head_norm(context, style)
        self.rotate = HeadRotary(
            context,
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=style.query_scale or model.head_size**-0.5,
            window_tokens=style.window_tokens if style.kinds[layer] == SLIDING else None,
            soft_cap=style.score_soft_cap,
        )
        self.attend = attention.Attention(name, spec)

    def _head_norm(self, context: BuildContext, style: Style) -> RMSNorm | None:
        return style.norm(context, self.head_size, eps=style.eps) if style.norms_heads else None

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v = self.rotate(self.qkv_proj(x), rope)
        return self.o_proj(self.attend(q, k, v), residual)


class MLP(nn.Module):
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


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm, each added to its input."""

    def __init__(self, context: BuildContext, name: str, style: Style, layer: int) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.kind = style.kinds[layer]
        self.self_attn = Attention(context, f"{name}.self_attn", style, layer)
        self.mlp = self.build_mlp(context, f"{name}.mlp", style, layer)
        self.input_layernorm = style.norm(context, size, eps=style.eps)
        self.post_attention_layernorm = style.norm(context, size, eps=style.eps)

    def build_mlp(self, context: BuildContext, name: str, style: Style, layer: int) -> nn.Module:
        """Return the layer's feed-forward part."""
        inner = int(context.model.hf_config["intermediate_size"])
        return MLP(context, name, inner=inner, act=style.act, bias=style.has_mlp_bias)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        x = self.self_attn(self.input_layernorm(x), ropes[self.kind], x)
        return self.mlp(self.post_attention_layernorm(x), x)


class DecoderModel(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(
        self, context: BuildContext, name: str, style: Style, block: type[Block] = Block
    ) -> None:
        super().__init__()
        model = context.model
        self.embed_tokens = VocabParallelEmbedding(
            context,
            model.vocab_size,
            model.hidden_size,
            head=HEAD if style.is_tied else None,
            factor=style.embedding_scale or 1.0,
        )
        self.layers = nn.ModuleList(
            block(context, f"{name}.layers.{i}", style, i) for i in range(model.num_layers)
        )
        self.norm = style.norm(context, model.hidden_size, eps=style.eps)
        self.rotaries = self.build_rotaries(context, set(style.kinds))

    def build_rotaries(self, context: BuildContext, kinds: set[str]) -> nn.ModuleDict:
        """Return a rotary table per kind of layer; here one for all."""
        rotary = Rotary(rope_settings(context), context.device)
        return nn.ModuleDict({kind: rotary for kind in sorted(kinds)})

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.embed_tokens(token_ids)
        ropes = {kind: rotary(positions) for kind, rotary in self.rotaries.items()}
        for layer in self.layers:
            x = layer(x, ropes)
        return self.norm(x)


class DecoderForCausalLM(nn.Module, Model):
    """A decoder with a head on it: what the model plugins of these families derive from."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})
    trunk: ClassVar[type[DecoderModel]] = DecoderModel
    block: ClassVar[type[Block]] = Block

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        model = context.model
        style = self.style(model)
        self.is_tied = style.is_tied
        self.model = self.trunk(context, "model", style, self.block)
        self.lm_head = LogitsHead(
            context,
            HEAD,
            model.vocab_size,
            model.hidden_size,
            tied=self.model.embed_tokens if style.is_tied else None,
            soft_cap=style.logit_soft_cap,
        )

    @classmethod
    def style(cls, model: ModelSpec) -> Style:
        """Return how this family differs, read from its config."""
        return plain_style(model)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        tied = {"lm_head.weight": "model.embed_tokens.weight"} if self.is_tied else {}
        return WeightMap(fused=FUSED, ignored=("rotary_emb.inv_freq",), tied=tied)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.model(token_ids, positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        return self.lm_head(hidden)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return the number as the compute dtype would hold it."""
    return float(torch.tensor(value, dtype=dtype))
