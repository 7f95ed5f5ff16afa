"""HyperCLOVA X SEED: Granite with norms also after attention and MLP, and logits that are
multiplied by their scale.

Source: NAVER Cloud, HyperCLOVA X THINK Technical Report, 2025 (arXiv 2506.22403).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from msgspec import structs

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderLayer
from dovetail_plugins.models.granite import GraniteForCausalLM


class HyperCLOVAXLayer(DecoderLayer):
    """A layer with norms after attention and MLP, if the config has them; those read plain
    outputs, not divided like the residual sums."""

    def build_norms(self, context: BuildContext, config: DecoderConfig) -> None:
        """Make the norms of this layer. Mutates: self"""
        super().build_norms(context, config)
        self.is_sandwich = bool(context.model.hf_config["use_post_norm"])
        if self.is_sandwich:
            size = context.model.hidden_size
            self.post_norm1 = config.norm(context, size, eps=config.norm_eps)
            self.post_norm2 = config.norm(context, size, eps=config.norm_eps)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if not self.is_sandwich:
            return super().forward(x, ropes)
        attended = self.self_attn(self.input_layernorm(x), ropes.get(self.rope))
        x = self.post_norm1(attended, residual=x)
        fed = self.mlp(self.post_attention_layernorm(x))
        out: torch.Tensor = self.post_norm2(fed, residual=x)
        return out


class HyperCLOVAXForCausalLM(GraniteForCausalLM):
    """HyperCLOVA X SEED with a head."""

    info = Info(summary="HyperCLOVA X SEED", source="https://arxiv.org/abs/2506.22403")
    layer_class = HyperCLOVAXLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Granite's config except the logit scale; the score scale may be the default."""
        config = model.hf_config
        scale = config.get("attention_multiplier")
        filled = {**config, "attention_multiplier": scale or model.head_size**-0.5}
        usual = super().decoder_config(structs.replace(model, hf_config=filled))
        return replace(usual, logit_scale=float(config["logits_scaling"]))
