"""Qwen3-MoE: Qwen3 with experts in most layers. Source: Yang et al. 2025."""

from __future__ import annotations

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    usual_config,
    window_in_all_layers,
)
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.models._moe import is_sparse, num_experts, softmax_rule


class Qwen3MoeLayer(DecoderLayer):
    """A layer of experts, or with one MLP if config.json says so."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if not is_sparse(settings, layer):
            return super().build_mlp(context, name, config, layer)
        return MoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings),
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
        )


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3-MoE with a head."""

    info = Info(summary="Qwen3-MoE (mixture of experts)", source="https://arxiv.org/abs/2505.09388")
    layer_class = Qwen3MoeLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms on the heads, one window for all layers or none."""
        window = window_in_all_layers(model) if model.hf_config.get("use_sliding_window") else {}
        return usual_config(model, qk_norm=True, **window)
