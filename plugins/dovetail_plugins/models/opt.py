"""OPT: learned positions that start at 2, plain ReLU MLP, biases everywhere, tied head.

Norms precede each block, or follow it in the 350M checkpoint. Source: Zhang et al. 2022.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention import Attention
from dovetail.layers.decoder_head import HEAD, HeadedDecoder, class_score, generates, lm_head
from dovetail.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from dovetail.layers.linear import (
    ActivatedLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from dovetail.layers.norm import LayerNorm
from dovetail.layers.stages import Stage

POSITION_OFFSET = 2
EPS = 1e-5


class OPTAttention(nn.Module):
    """Attention without rotary positions, biases on all projections."""

    def __init__(self, context: BuildContext, name: str, *, bias: bool) -> None:
        super().__init__()
        model = context.model
        self.qkv_proj = QKVParallelLinear(
            context,
            f"{name}.qkv_proj",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_heads,
            head_size=model.head_size,
            bias=bias,
        )
        self.out_proj = RowParallelLinear(
            context, f"{name}.out_proj", model.hidden_size, model.hidden_size, bias=bias
        )
        spec = AttentionSpec(
            num_heads=self.qkv_proj.num_heads,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            head_size=model.head_size,
            scale=model.head_size**-0.5,
        )
        self.attn = Attention(name, spec)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return self.out_proj(self.attn(*self.qkv_proj.forward_split(x)))


class OPTMLP(nn.Module):
    """fc1, which ends in the activation, then fc2."""

    def __init__(self, context: BuildContext, name: str, *, bias: bool) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        inner = int(config["ffn_dim"])
        act = config.get("activation_function", "relu")
        self.fc1 = ActivatedLinear(context, f"{name}.fc1", size, inner, act=act, bias=bias)
        self.fc2 = RowParallelLinear(context, f"{name}.fc2", inner, size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return self.fc2(self.fc1(x))


class OPTLayer(nn.Module):
    """One layer; `norms_first` says whether the norm precedes or follows each block."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        config, size = context.model.hf_config, context.model.hidden_size
        bias = bool(config.get("enable_bias", True))
        self.norms_first = bool(config.get("do_layer_norm_before", True))
        self.self_attn = OPTAttention(context, f"{name}.self_attn", bias=bias)
        self.mlp = OPTMLP(context, name, bias=bias)
        self.self_attn_layer_norm = LayerNorm(context, size, eps=EPS)
        self.final_layer_norm = LayerNorm(context, size, eps=EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.norms_first:
            x = x + self.self_attn(self.self_attn_layer_norm(x))
            return x + self.mlp(self.final_layer_norm(x))
        x = self.self_attn_layer_norm(x + self.self_attn(x))
        return self.final_layer_norm(x + self.mlp(x))


class OPTModel(nn.Module):
    """Embeddings (projected if they are narrower than the blocks), blocks, last norm."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        model, config = context.model, context.model.hf_config
        size = model.hidden_size
        self.config = config
        self.narrow_size = narrow = int(config.get("word_embed_proj_dim") or size)
        self.is_tied = generates(model) and bool(config.get("tie_word_embeddings", True))
        self.stage = stage = Stage(context)
        head = HEAD if self.is_tied else None
        self.embed_tokens = stage.table(
            lambda: VocabParallelEmbedding(
                context, model.vocab_size, narrow, head=head, factor=self.embedding_scale
            ),
            is_tied=self.is_tied,
        )
        self.embed_positions = stage.first(lambda: self.build_positions(context, size))
        is_projected = narrow != size
        self.project_in = (
            stage.first(lambda: ReplicatedLinear(context, f"{name}.project_in", narrow, size))
            if is_projected
            else None
        )
        self.project_out = (
            stage.last(lambda: ReplicatedLinear(context, f"{name}.project_out", size, narrow))
            if is_projected
            else None
        )
        self.layers = stage.layers(lambda i: OPTLayer(context, f"{name}.layers.{i}"))
        norms_last = config.get("do_layer_norm_before", True) and not config.get(
            "_remove_final_layer_norm", False
        )
        self.final_layer_norm = (
            stage.last(lambda: LayerNorm(context, size, eps=EPS)) if norms_last else None
        )

    @property
    def embedding_scale(self) -> float:
        """Return the factor of the token vectors."""
        return 1.0

    def build_positions(self, context: BuildContext, size: int) -> PositionEmbedding:
        """Return the vectors of positions; here learned ones."""
        num_positions = int(self.config["max_position_embeddings"])
        return PositionEmbedding(context, num_positions, size, offset=POSITION_OFFSET)

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer. Shapes: token_ids, positions [T] -> [T, E]"""
        x = self.embed_tokens(token_ids)
        if self.project_in is not None:
            x = self.project_in(x)
        return x + self.embed_positions(positions)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E of the head]"""
        stage = self.stage
        x = self.embed(token_ids, positions) if stage.is_first else stage.received(token_ids)
        for layer in self.layers:
            x = layer(x)
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        return x if self.project_out is None else self.project_out(x)


class OPTForCausalLM(HeadedDecoder):
    """OPT with its tied head."""

    info = Info(summary="OPT", source="https://arxiv.org/abs/2205.01068")
    capabilities = frozenset({"tensor_parallel", "pipeline_parallel"})
    model_class: ClassVar[type[OPTModel]] = OPTModel

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        self.model = self.model_class(context, "model.decoder")
        stage, self.is_tied = self.model.stage, self.model.is_tied
        tied, size = self.model.embed_tokens if self.is_tied else None, self.model.narrow_size
        self.lm_head = lm_head(context, stage, tied=tied, in_size=size)
        self.score = class_score(context, stage, in_size=size)

    def weight_map(self) -> WeightMap:
        """Return the names: older checkpoints start with "decoder.", newer "model.decoder."."""
        return WeightMap(
            prefixes=(("model.decoder.", "model."), ("decoder.", "model.")),
            renames=((".fc1.", ".mlp.fc1."), (".fc2.", ".mlp.fc2."), (".mlp.mlp.", ".mlp.")),
            fused={f"{n}_proj": ("qkv_proj", n) for n in "qkv"},
            tied={"lm_head.weight": "model.embed_tokens.weight"} if self.is_tied else {},
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self.model(token_ids, positions)
