"""Mixtral: Mistral whose MLP is a mixture of experts. Source: Jiang et al. 2024."""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    usual_config,
    window_in_all_layers,
)
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.models._moe import lettered, num_experts, softmax_rule


class MixtralMoE(MoE):
    """Router and experts; the picked experts' weights sum to one."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        settings = context.model.hf_config
        super().__init__(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings, renormalizes=True),
            inner=int(settings["intermediate_size"]),
            act=config.hidden_act,
        )


class MixtralLayer(DecoderLayer):
    """A layer of experts."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> MixtralMoE:
        """Return the layer's router and experts."""
        return MixtralMoE(context, name.replace(".mlp", ".block_sparse_moe"), config)


class MixtralForCausalLM(DecoderForCausalLM):
    """Mixtral with a head."""

    info = Info(summary="Mixtral (mixture of experts)", source="https://arxiv.org/abs/2401.04088")
    layer_class = MixtralLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config, windowed if config.json gives a window."""
        return usual_config(model, **window_in_all_layers(model))

    def weight_map(self) -> WeightMap:
        """Return the names: w1, w3, w2 of each expert are gate, up, down."""
        return lettered(super().weight_map())
