"""Phi-3.5-MoE: layer norms, biases, and two experts a token by sparsemixer.

Source: Abdin et al. 2024, section 5; Liu et al. 2024, GRIN.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import RopeSettings, Rotary, rope_settings
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
    window_in_all_layers,
)
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models._moe import lettered, num_experts


class PhimoeLayer(DecoderLayer):
    """A layer of experts."""

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's router and experts."""
        settings = context.model.hf_config
        return MoE(
            context,
            name.replace(".mlp", ".block_sparse_moe"),
            num_experts=num_experts(settings),
            rule=RoutingRule(
                num_picked=int(settings["num_experts_per_tok"]),
                scoring="sparsemixer",
                margin=float(settings["router_jitter_noise"]),
            ),
            inner=int(settings["intermediate_size"]),
            act=config.hidden_act,
        )


class PhimoeModel(DecoderModel):
    """The decoder whose rotation is scaled by numbers in the config."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return one rotary table for all types of layers."""
        settings = _scaled(rope_settings(context, theta=self.config.rope_theta))
        rotary = Rotary(settings, context.device)
        return nn.ModuleDict({layer_type: rotary for layer_type in sorted(layer_types)})


def _scaled(settings: RopeSettings) -> RopeSettings:
    """Return settings under whose rule cos and sin are times the short or the long "mscale"."""
    if settings.rule == "default":
        return settings
    is_long = settings.served_positions > settings.number("original_max_position_embeddings")
    factor = settings.number("long_mscale" if is_long else "short_mscale")
    return replace(settings, values={**settings.values, "attention_factor": factor})


class PhimoeForCausalLM(DecoderForCausalLM):
    """Phi-3.5-MoE with a head."""

    info = Info(
        summary="Phi-3.5-MoE (mixture of experts)", source="https://arxiv.org/abs/2404.14219"
    )
    model_class = PhimoeModel
    layer_class = PhimoeLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: layer norms, perhaps a bias on the head, one window for all layers."""
        return usual_config(
            model,
            norm=LayerNorm,
            has_head_bias=bool(model.hf_config["lm_head_bias"]),
            rope_theta=1e6,
            **window_in_all_layers(model),
        )

    def weight_map(self) -> WeightMap:
        """Return the names: the experts' are Mixtral's."""
        return lettered(super().weight_map())
