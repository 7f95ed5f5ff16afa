"""Qwen3-Next: three of four layers use the gated delta rule, the others gated attention; experts in
each, one of them shared.

Source: Qwen team, Qwen3-Next-80B-A3B, 2025; Yang et al., Gated Delta Networks, 2024 (arXiv
2412.06464).
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import GemmaRMSNorm
from dovetail_plugins.layers.attention.gated import WITH_GATE, GatedAttention
from dovetail_plugins.layers.mixers.delta import BA, QKV, QKVZ, DeltaMixer
from dovetail_plugins.layers.mixers.hybrid import HybridLayer, HybridModel
from dovetail_plugins.model_types.qwen3_next import delta_sizes, layer_types
from dovetail_plugins.models.qwen2_moe import Qwen2MoeLayer

APART = {
    "in_proj_qkv": ("in_proj_qkvz", QKV),
    "in_proj_z": ("in_proj_qkvz", "z"),
    "in_proj_b": ("in_proj_ba", "b"),
    "in_proj_a": ("in_proj_ba", "a"),
}
"""Names of inputs of the delta layers with separate matrices."""


class Qwen3NextLayer(HybridLayer, Qwen2MoeLayer):
    """One layer: the delta rule or gated attention, and experts or an MLP."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return DeltaMixer(context, name, delta_sizes(context.model.hf_config))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return GatedAttention(context, name, config, layer)


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
