"""Gemma 2: norms before and after each part, windows in every other layer, soft caps.

Source: Gemma Team 2024, Gemma 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
)
from dovetail.layers.rotary import Rope
from dovetail_plugins.models.gemma import gemma_config


class Gemma2Layer(DecoderLayer):
    """Attention and MLP, each between two norms."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        size = context.model.hidden_size
        self.pre_feedforward_layernorm = config.norm(context, size, eps=config.norm_eps)
        self.post_feedforward_layernorm = config.norm(context, size, eps=config.norm_eps)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        attended = self.self_attn(self.input_layernorm(x), ropes.get(self.layer_type))
        x = self.post_attention_layernorm(attended, residual=x)
        fed = self.mlp(self.pre_feedforward_layernorm(x))
        return self.post_feedforward_layernorm(fed, residual=x)


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Gemma 2 with a head."""

    info = Info(summary="Gemma 2", source="https://arxiv.org/abs/2408.00118")
    layer_class = Gemma2Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma 2's config: even layers slide."""
        config = model.hf_config
        derived = [FULL if i % 2 else SLIDING for i in range(model.num_layers)]
        return gemma_config(
            model,
            layer_types=tuple(config.get("layer_types") or derived),
            window_tokens=config.get("sliding_window", 4096),
            query_scale=float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
            attn_logit_softcap=config.get("attn_logit_softcapping", 50.0),
            final_logit_softcap=config.get("final_logit_softcapping", 30.0),
        )
