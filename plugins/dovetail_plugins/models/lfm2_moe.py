"""LFM2 with experts: its convolutions and attention, and a mixture after the first dense layers.

Experts are picked by sigmoids, corrected if config.json says so.
Source: Liquid AI, LFM2 Technical Report, 2025 (arXiv 2511.23404), section on LFM2-8B-A1B.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, GatedMLP
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.models.lfm2 import Lfm2ForCausalLM, Lfm2Layer

LEAST_SUM = 1e-6
"""What weights are divided by at least: sums of picked sigmoids are far above it."""


class Lfm2MoeLayer(Lfm2Layer):
    """One layer: a convolution or attention, and an MLP in the first layers, then experts."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        if layer < int(settings["num_dense_layers"]):
            inner = int(settings["intermediate_size"])
            return GatedMLP(context, name, inner=inner, act=config.hidden_act)
        rule = RoutingRule(
            num_picked=int(settings["num_experts_per_tok"]),
            scoring="sigmoid",
            renormalizes=bool(settings["norm_topk_prob"]),
            least_sum=LEAST_SUM,
            factor=float(settings["routed_scaling_factor"]),
        )
        return MoE(
            context,
            name,
            num_experts=int(settings["num_experts"]),
            rule=rule,
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
            has_correction_bias=bool(settings["use_expert_bias"]),
        )


class Lfm2MoeForCausalLM(Lfm2ForCausalLM):
    """LFM2 with experts and its tied head."""

    info = Info(
        summary="LFM2 with experts: short convolutions", source="https://arxiv.org/abs/2511.23404"
    )
    layer_class = Lfm2MoeLayer

    def weight_map(self) -> WeightMap:
        """Return LFM2's names plus those for experts."""
        usual = super().weight_map()
        own = ((".expert_bias", ".e_score_correction_bias"), (".w2.", ".down_proj."))
        return replace(usual, renames=(*usual.renames, *own))
