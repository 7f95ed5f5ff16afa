"""DeciLM, and Llama Nemotron Super and Ultra: Llama whose blocks differ. Each has its number of kv
heads and its inner size, and may lack the attention or the MLP, or have one matrix instead.

Source: Bercovich et al., Puzzle, 2024, arXiv 2411.19146; the names are from its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from msgspec import structs
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import (
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    GatedMLP,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.model_types.deci import Block, blocks


class OneMatrix(nn.Module):
    """A matrix in the place of a block's attention or MLP."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.o_proj = ReplicatedLinear(context, f"{name}.o_proj", size, size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return of_tensors(lambda a, b: (a + b,), self.o_proj(x), residual)[0]


class DeciLayer(DecoderLayer):
    """One block; a part that it lacks has no norm either."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.rope = config.layer_types[layer]
        block = blocks(context.model.hf_config)[layer]
        attention = self._attention(context, f"{name}.self_attn", config, layer, block)
        mlp = self._mlp(context, f"{name}.mlp", config, block)
        self.attends, self.feeds = attention is not None, mlp is not None
        if attention is not None:
            self.self_attn = attention
            self.input_layernorm = config.build_norm(context)
        if mlp is not None:
            self.mlp = mlp
            self.post_attention_layernorm = config.build_norm(context)

    def _attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int, block: Block
    ) -> nn.Module | None:
        if block.kv_heads:
            own = structs.replace(context.model, num_kv_heads=block.kv_heads)
            return DecoderAttention(replace(context, model=own), name, config, layer)
        return OneMatrix(context, name) if block.mixes else None

    def _mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, block: Block
    ) -> nn.Module | None:
        if block.inner:
            act, bias = config.hidden_act, config.has_mlp_bias
            return GatedMLP(context, name, inner=block.inner, act=act, bias=bias)
        return OneMatrix(context, name) if block.feeds else None

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.attends and isinstance(self.self_attn, OneMatrix):
            x = self.self_attn(self.input_layernorm(x), x)
        elif self.attends:
            x = self.self_attn(self.input_layernorm(x), ropes.get(self.rope), x)
        return self.mlp(self.post_attention_layernorm(x), x) if self.feeds else x


class DeciLMForCausalLM(DecoderForCausalLM):
    """DeciLM or Nemotron NAS with a head."""

    info = Info(
        summary="DeciLM, Llama Nemotron Super and Ultra", source="https://arxiv.org/abs/2411.19146"
    )
    layer_class = DeciLayer

    def weight_map(self) -> WeightMap:
        """Return the names: a matrix that takes a part's place has that part's name, too."""
        whole = ((".self_attn.linear_attn.", ".self_attn.o_proj."),
                 (".mlp.linear_mlp.", ".mlp.o_proj."))  # fmt: skip
        return replace(super().weight_map(), renames=whole)
