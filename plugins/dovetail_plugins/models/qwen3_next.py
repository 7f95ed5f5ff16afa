"""Qwen3-Next: three of four layers learn by the gated delta rule, the others attend with a gate;
experts in each, one of them shared.

Source: Qwen team, Qwen3-Next-80B-A3B, 2025; Yang et al., Gated Delta Networks, 2024 (arXiv
2412.06464).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.delta import BA, QKV, QKVZ, DeltaMixer
from dovetail.layers.gated_attention import WITH_GATE, GatedAttention
from dovetail.layers.norm import GemmaRMSNorm
from dovetail.layers.rotary import Rope
from dovetail_plugins.model_types.qwen3_next import LINEAR, delta_sizes, layer_types
from dovetail_plugins.models._hybrid import HybridModel
from dovetail_plugins.models.qwen2_moe import Qwen2MoeLayer

APART = {
    "in_proj_qkv": ("in_proj_qkvz", QKV),
    "in_proj_z": ("in_proj_qkvz", "z"),
    "in_proj_b": ("in_proj_ba", "b"),
    "in_proj_a": ("in_proj_ba", "a"),
}
"""Names of inputs of the delta layers that have matrices of their own."""


class Qwen3NextLayer(Qwen2MoeLayer):
    """One layer: the delta rule or gated attention, and experts or an MLP."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        self.layer_type = config.layer_types[layer]
        if self.layer_type == LINEAR:
            sizes = delta_sizes(context.model.hf_config)
            self.linear_attn = DeltaMixer(context, f"{name}.linear_attn", sizes)
        else:
            self.self_attn = GatedAttention(context, f"{name}.self_attn", config, layer)
        self.mlp = self.build_mlp(context, f"{name}.mlp", config, layer)
        self.build_norms(context, config)

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        inner = self.input_layernorm(x)
        if self.layer_type == LINEAR:
            x = self.linear_attn(inner, x)
        else:
            x = self.self_attn(inner, ropes[self.layer_type], x)
        out: torch.Tensor = self.mlp(self.post_attention_layernorm(x), x)
        return out


class Qwen3NextForCausalLM(DecoderForCausalLM):
    """Qwen3-Next with its head."""

    info = Info(
        summary="Qwen3-Next: gated delta rule and experts",
        source="https://arxiv.org/abs/2412.06464",
    )
    model_class = HybridModel
    layer_class = Qwen3NextLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config with norms that store their distance from one, on heads too."""
        return usual_config(
            model,
            layer_types=layer_types(model.hf_config),
            norm=GemmaRMSNorm,
            qk_norm=True,
            rotary_share=0.25,
        )

    def weight_map(self) -> WeightMap:
        """Return the names: queries come with their gates, the delta layers' inputs by key head or,
        in Qwen3.5 and in GGUF files, apart, but queries, keys and values of one convolution.
        The layers that draft are not run."""
        usual = super().weight_map()
        fused = {
            **usual.fused,
            "q_proj": ("qkv_proj", WITH_GATE),
            "in_proj_qkvz": ("in_proj_qkvz", QKVZ),
            "in_proj_ba": ("in_proj_ba", BA),
            **APART,
        }
        return replace(usual, fused=fused, ignored=(*usual.ignored, "mtp."))
