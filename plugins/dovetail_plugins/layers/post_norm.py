"""Decoder layers that norm the outputs of attention and MLP before the residual sum: two norms in
all, or four. Attention and MLP are like any decoder's.

Source: Liu et al., Swin Transformer V2, 2021; Gemma Team, Gemma 2, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderLayer


class PostNormLayer(DecoderLayer):
    """Attention and MLP, each with a norm after it and none before."""

    def build_norms(self, context: BuildContext, config: DecoderConfig) -> None:
        """Make the norms after attention and MLP. Mutates: self"""
        self.post_attention_layernorm = config.build_norm(context)
        self.post_feedforward_layernorm = config.build_norm(context)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        attended = self.self_attn(x, ropes.get(self.rope))
        x = self.post_attention_layernorm(attended, residual=x)
        return self.post_feedforward_layernorm(self.mlp(x), residual=x)


class SandwichLayer(DecoderLayer):
    """Attention and MLP, each between two norms."""

    def build_norms(self, context: BuildContext, config: DecoderConfig) -> None:
        """Make the norms before and after. Mutates: self"""
        self.input_layernorm = config.build_norm(context)
        self.post_attention_layernorm = config.build_norm(context)
        self.pre_feedforward_layernorm = config.build_norm(context)
        self.post_feedforward_layernorm = config.build_norm(context)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        attended = self.self_attn(self.input_layernorm(x), ropes.get(self.rope))
        x = self.post_attention_layernorm(attended, residual=x)
        fed = self.mlp(self.pre_feedforward_layernorm(x))
        return self.post_feedforward_layernorm(fed, residual=x)
