"""Hunyuan 3 (Hy3): norms on heads, and DeepSeek-V3's mixture in all layers but the first, as
config.json lists them.

Source: Tencent Hunyuan Team, Hy3, 2026, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, DecoderLayer, usual_config
from dovetail_plugins.models._moe import SharedMoE, num_experts, sigmoid_rule

ROUTER = (
    (".mlp.router.gate.", ".mlp.gate."),
    (".mlp.expert_bias", ".mlp.e_score_correction_bias"),
    (".shared_mlp.", ".shared_experts."),
)
"""The router's and the shared experts' names in checkpoints, and here."""


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer has experts: as listed, or all but the first ones."""
    listed = config.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "sparse")
    first = config.get("first_k_dense_replace")
    return layer >= (1 if first is None else int(first))


class HYV3Layer(DecoderLayer):
    """A layer of experts, or of one MLP."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if not is_sparse(settings, layer):
            return super().build_mlp(context, name, config, layer)
        inner = int(settings["moe_intermediate_size"])
        return SharedMoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=sigmoid_rule(settings),
            inner=inner,
            act=config.hidden_act,
            shared_inner=int(settings.get("n_shared_experts") or 0) * inner,
            routes_in_float32=True,
            has_correction_bias=True,
        )


class HYV3ForCausalLM(DecoderForCausalLM):
    """Hunyuan 3 with a head, without its drafter: the layer after the last."""

    info = Info(
        summary="Hunyuan 3 (mixture of experts)", source="https://huggingface.co/tencent/Hy3"
    )
    layer_class = HYV3Layer

    def __init__(self, options: object, context: BuildContext) -> None:
        super().__init__(options, context)
        self.drafter = f"model.layers.{context.model.num_layers}."

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: norms on the heads."""
        return usual_config(model, qk_norm=True)

    def weight_map(self) -> WeightMap:
        """Return the names, without the drafter's layer."""
        usual = super().weight_map()
        return replace(usual, renames=ROUTER, ignored=(*usual.ignored, self.drafter))
