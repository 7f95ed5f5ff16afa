"""Hunyuan with experts and a shared one in all layers. Source: Sun et al. 2024."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models._moe import SharedMoE
from dovetail_plugins.models.hunyuan import HunYuanModel

RENAMES = (
    (".query_layernorm.", ".q_norm."),
    (".key_layernorm.", ".k_norm."),
    (".gate.wg.", ".gate."),
    (".shared_mlp.", ".shared_experts."),
)


class HunYuanMoELayer(DecoderLayer):
    """A layer of experts and a shared one, both of the same size."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> SharedMoE:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        inner = int(settings["intermediate_size"])
        picked = _of_layer(settings["moe_topk"], layer)
        return SharedMoE(
            context,
            name,
            act=config.hidden_act,
            shared_inner=inner,
            shared="shared_mlp",
            num_experts=_of_layer(settings["num_experts"], layer),
            rule=RoutingRule(num_picked=picked, renormalizes=True),
            inner=inner,
            gate="gate.wg",
            routes_in_float32=True,
        )


def _of_layer(number: Any, layer: int) -> int:
    """Return a layer's number; config.json has one for each layer or one for all."""
    return int(number[layer] if isinstance(number, list) else number)


class HunYuanMoEV1ForCausalLM(DecoderForCausalLM):
    """Hunyuan with experts and a head."""

    info = Info(summary="Hunyuan (mixture of experts)", source="https://arxiv.org/abs/2411.02265")
    model_class = HunYuanModel
    layer_class = HunYuanMoELayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: heads are normed when they have been turned."""
        return usual_config(model, qk_norm=True, norms_turned=True)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), renames=RENAMES)
