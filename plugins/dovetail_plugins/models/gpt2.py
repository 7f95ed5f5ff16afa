"""GPT-2: learned positions, pre-norm blocks, matrices stored as [in, out], tied head.

Source: Radford et al. 2019.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention import Attention
from dovetail.layers.decoder_head import HEAD, HeadedDecoder, class_score, generates, lm_head
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear import ActivatedLinear, QKVParallelLinear, RowParallelLinear
from dovetail.layers.norm import LayerNorm
from dovetail.layers.stages import Stage


class GPT2Attention(nn.Module):
    """Attention without rotary positions; q, k and v come fused from the checkpoint."""

    has_qkv_bias: ClassVar[bool] = True

    def __init__(self, context: BuildContext, name: str, layer: int) -> None:
        super().__init__()
        model = context.model
        self.c_attn = QKVParallelLinear(
            context,
            f"{name}.c_attn",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            bias=self.has_qkv_bias,
        )
        self.c_proj = RowParallelLinear(
            context, f"{name}.c_proj", model.hidden_size, model.hidden_size, bias=True
        )
        self.attn = Attention(name, self.attention_spec(model, layer))

    def attention_spec(self, model: ModelSpec, layer: int) -> AttentionSpec:
        """Return the spec of this layer's attention."""
        config = model.hf_config
        scale = model.head_size**-0.5 if config.get("scale_attn_weights", True) else 1.0
        if config.get("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        return AttentionSpec(
            num_heads=self.c_attn.num_heads,
            num_kv_heads=self.c_attn.num_kv_heads,
            head_size=model.head_size,
            scale=scale,
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.c_proj(self.attn(*self.c_attn.forward_split(x)), residual)


class GPT2MLP(nn.Module):
    """c_fc, which ends in the activation, then c_proj."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        inner = int(config.get("n_inner") or 4 * size)
        act = config.get("activation_function", "gelu_new")
        self.c_fc = ActivatedLinear(context, f"{name}.c_fc", size, inner, act=act, bias=True)
        self.c_proj = RowParallelLinear(context, f"{name}.c_proj", inner, size, bias=True)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.c_proj(self.c_fc(x), residual)


class GPT2Layer(nn.Module):
    """One layer: attention and MLP, each after a norm, each added to its input."""

    attention_class: ClassVar[type[GPT2Attention]] = GPT2Attention

    def __init__(self, context: BuildContext, name: str, layer: int) -> None:
        super().__init__()
        size = context.model.hidden_size
        eps = float(context.model.hf_config.get("layer_norm_epsilon", 1e-5))
        self.ln_1 = LayerNorm(context, size, eps=eps)
        self.attn = self.attention_class(context, f"{name}.attn", layer)
        self.ln_2 = LayerNorm(context, size, eps=eps)
        self.mlp = GPT2MLP(context, f"{name}.mlp")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        x = self.attn(self.ln_1(x), x)
        return self.mlp(self.ln_2(x), x)


class GPT2Model(nn.Module):
    """Token and position embeddings, blocks, last norm."""

    def __init__(
        self, context: BuildContext, name: str, layer_class: type[GPT2Layer] = GPT2Layer
    ) -> None:
        super().__init__()
        model, config = context.model, context.model.hf_config
        if config.get("add_cross_attention"):
            raise ConfigError(
                "cross attention needs an encoder, and GPT-2 has none.",
                where="config.json: add_cross_attention",
            )
        size = model.hidden_size
        num_positions = int(config.get("n_positions") or model.max_position_tokens)
        self.is_tied = generates(model) and bool(config.get("tie_word_embeddings", True))
        self.stage = stage = Stage(context)
        head = HEAD if self.is_tied else None
        self.wte = stage.table(
            lambda: VocabParallelEmbedding(context, model.vocab_size, size, head=head),
            is_tied=self.is_tied,
        )
        self.wpe = stage.first(lambda: PositionEmbedding(context, num_positions, size))
        self.h = stage.layers(lambda i: layer_class(context, f"{name}.h.{i}", i))
        eps = float(config.get("layer_norm_epsilon", 1e-5))
        self.ln_f = stage.last(lambda: LayerNorm(context, size, eps=eps))

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        if self.stage.is_first:
            x = self.wpe(positions, self.wte(token_ids))
        else:
            x = self.stage.received(token_ids)
        for layer in self.h:
            x = layer(x)
        return self.ln_f(x)


class GPT2LMHeadModel(HeadedDecoder):
    """GPT-2 with its tied head."""

    info = Info(summary="GPT-2", source="https://github.com/openai/gpt-2")
    capabilities = frozenset({"tensor_parallel", "pipeline_parallel"})
    layer_class: ClassVar[type[GPT2Layer]] = GPT2Layer

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        self.transformer = GPT2Model(context, "transformer", self.layer_class)
        stage, self.is_tied = self.transformer.stage, self.transformer.is_tied
        tied = self.transformer.wte if self.is_tied else None
        self.lm_head = lm_head(context, stage, tied=tied)
        self.score = class_score(context, stage)

    def weight_map(self) -> WeightMap:
        """Return the names: older checkpoints leave "transformer." out; matrices are [in, out]."""
        starts = ("wte.", "wpe.", "h.", "ln_f.")
        return WeightMap(
            prefixes=(
                ("classifier.", "score."),
                *((start, f"transformer.{start}") for start in starts),
            ),
            transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
            ignored=(".attn.bias", ".attn.masked_bias"),
            tied={"lm_head.weight": "transformer.wte.weight"} if self.is_tied else {},
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.transformer(token_ids, positions)
