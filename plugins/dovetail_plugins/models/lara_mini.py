"""Lara Mini: layers of the gated delta rule, of windowed attention, and of attention without
positions; each has experts, and a shared one for every token.

Source: Translated, Lara 4 Mini, 2026, as transformers has it; Yang et al., Gated Delta Networks,
2024 (arXiv 2412.06464).
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FULL, DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.layers.mixers.delta import QKV, JoinedDeltaMixer
from dovetail_plugins.layers.mixers.hybrid import HybridLayer, HybridModel
from dovetail_plugins.model_types.lara_mini import layer_types
from dovetail_plugins.model_types.qwen3_next import delta_sizes
from dovetail_plugins.models._moe import SharedMoE, num_experts, softmax_rule

APART = {
    "in_proj_qkv": ("in_proj", QKV),
    **{f"in_proj_{part}": ("in_proj", part) for part in "zba"},
}
RENAMES = ((".out_norm.", ".norm."), (".mlp.shared_expert.", ".mlp.shared_experts."))


class LaraMiniLayer(HybridLayer):
    """One layer: the delta rule or attention, and experts."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return JoinedDeltaMixer(context, name, delta_sizes(context.model.hf_config))

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's experts."""
        settings = context.model.hf_config
        return SharedMoE(
            context,
            name,
            num_experts=num_experts(settings),
            rule=softmax_rule(settings),
            inner=int(settings["moe_intermediate_size"]),
            act=config.hidden_act,
            shared="shared_expert",
            shared_inner=int(settings["shared_expert_intermediate_size"]),
            routes_in_float32=True,
        )


class LaraMiniForCausalLM(DecoderForCausalLM):
    """Lara Mini with its tied head."""

    info = Info(
        summary="Lara Mini: gated delta rule, windows and experts",
        source="https://huggingface.co/translated/Lara-4-Mini-Base",
    )
    model_class = HybridModel
    layer_class = LaraMiniLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: heads are normed, full layers have no positions."""
        kinds = layer_types(model.hf_config)
        return usual_config(
            model,
            layer_types=kinds,
            window_tokens=int(model.hf_config["sliding_window"]),
            qk_norm=True,
            unrotated=frozenset(i for i, kind in enumerate(kinds) if kind == FULL),
        )

    def weight_map(self) -> WeightMap:
        """Return the names: transformers stores the delta layers' inputs separately."""
        usual = super().weight_map()
        return replace(usual, renames=RENAMES, fused={**usual.fused, **APART})
