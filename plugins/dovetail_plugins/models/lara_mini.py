"""Lara Mini: layers of the gated delta rule, of windows, and of attention without positions;
experts in each, beside one that computes every token.

Source: Translated, Lara 4 Mini, 2026, as transformers has it; Yang et al., Gated Delta Networks,
2024 (arXiv 2412.06464).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.delta import QKV, JoinedDeltaMixer
from dovetail.layers.rotary import Rope
from dovetail_plugins.model_types.lara_mini import layer_types
from dovetail_plugins.model_types.qwen3_next import LINEAR, delta_sizes
from dovetail_plugins.models._moe import SharedMoE, num_experts, softmax_rule

APART = {
    "in_proj_qkv": ("in_proj", QKV),
    **{f"in_proj_{part}": ("in_proj", part) for part in "zba"},
}
RENAMES = ((".out_norm.", ".norm."), (".mlp.shared_expert.", ".mlp.shared_experts."))


class LaraMiniLayer(DecoderLayer):
    """One layer: the delta rule or attention, and experts."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        if config.layer_types[layer] != LINEAR:
            super().__init__(context, name, config, layer)
            return
        nn.Module.__init__(self)
        self.layer_type = LINEAR
        sizes = delta_sizes(context.model.hf_config)
        self.linear_attn = JoinedDeltaMixer(context, f"{name}.linear_attn", sizes)
        self.mlp = self.build_mlp(context, f"{name}.mlp", config, layer)
        self.build_norms(context, config)

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

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        if self.layer_type != LINEAR:
            return super().forward(x, ropes)
        x = self.linear_attn(self.input_layernorm(x), x)
        out: torch.Tensor = self.mlp(self.post_attention_layernorm(x), x)
        return out


class LaraMiniModel(DecoderModel):
    """The layers; only those with windows are rotated."""

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return the table of the layers with windows."""
        return super().build_rotaries(context, layer_types & {SLIDING})


class LaraMiniForCausalLM(DecoderForCausalLM):
    """Lara Mini with its tied head."""

    info = Info(
        summary="Lara Mini: gated delta rule, windows and experts",
        source="https://huggingface.co/translated/Lara-4-Mini-Base",
    )
    model_class = LaraMiniModel
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
        """Return the names: those of the delta layers' inputs apart are transformers'."""
        usual = super().weight_map()
        return replace(usual, renames=RENAMES, fused={**usual.fused, **APART})
