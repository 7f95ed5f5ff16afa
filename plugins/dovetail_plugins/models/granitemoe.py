"""Granite 3 with experts, and with shared ones: Granite's multipliers around Mixtral's routing.

Source: Granite Team, Granite 3.0 Language Models, 2024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderLayer
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.models._moe import SPARSE_BLOCK, SharedMoE, num_experts, softmax_rule
from dovetail_plugins.models.granite import GraniteForCausalLM

RENAMES = (
    (f"{SPARSE_BLOCK}input_linear.weight", ".mlp.experts.gate_up_proj"),
    (f"{SPARSE_BLOCK}output_linear.weight", ".mlp.experts.down_proj"),
    (f"{SPARSE_BLOCK}router.layer.", ".mlp.gate."),
    (".shared_mlp.input_linear.", ".mlp.shared_experts.gate_up_proj."),
    (".shared_mlp.output_linear.", ".mlp.shared_experts.down_proj."),
)
"""Granite's names: all experts of a layer are one tensor, gate and up joined."""


class GraniteMoeLayer(DecoderLayer):
    """A layer of experts, and of shared ones if the config has any."""

    def build_mlp(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> MoE:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        shared = int(settings.get("shared_intermediate_size") or 0)
        common: dict[str, Any] = {
            "num_experts": num_experts(settings),
            "rule": softmax_rule(settings, renormalizes=True),
            "inner": int(settings["intermediate_size"]),
            "act": config.hidden_act,
        }
        return (
            SharedMoE(context, name, shared_inner=shared, **common)
            if shared
            else MoE(context, name, **common)
        )


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """Granite with experts and a head."""

    info = Info(
        summary="Granite 3 (mixture of experts)",
        source="https://huggingface.co/ibm-granite/granite-3.0-3b-a800m-base",
    )
    layer_class = GraniteMoeLayer

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), renames=RENAMES)
