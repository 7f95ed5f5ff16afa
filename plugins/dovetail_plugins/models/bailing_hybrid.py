"""Ling 3 (Bailing Hybrid): five of six layers use the delta rule with a bounded per-channel decay,
the others latent attention with a gate per head; DeepSeek-V3's experts follow both.

Source: Ling Team, Ling 3, 2026, as transformers has it; Kimi Team, Kimi Linear, 2025 (arXiv
2510.26692).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.latent import LatentAttention, LatentConfig
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, usual_config
from dovetail.layers.linear import ColumnParallelLinear
from dovetail_plugins.layers.attention.output_gate import open_heads
from dovetail_plugins.layers.mixers.delta import WideDeltaMixer
from dovetail_plugins.layers.mixers.hybrid import LINEAR, HybridModel
from dovetail_plugins.model_types.bailing_hybrid import delta_sizes, layer_types
from dovetail_plugins.models.deepseek import DeepseekModel, DeepseekV3ForCausalLM, latent_config
from dovetail_plugins.models.kimi_linear import FORGETS, KimiLinearLayer

NAMES = (
    (".attention.", ".self_attn."),
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".gate.expert_bias", ".gate.e_score_correction_bias"),
)
IN_DELTA: dict[str, tuple[str, str]] = {
    **{f"{part}_proj": ("qkv_proj", part) for part in "qkv"},
    **{f"{part}_conv1d": ("conv1d", part) for part in "qkv"},
    **{f"{part}_proj": ("in_proj_fgb", part) for part in "fgb"},
}
"""Names within the layers of the delta rule."""


class GatedLatentAttention(LatentAttention):
    """Latent attention whose heads' outputs are each multiplied by a sigmoid of its input."""

    def __init__(self, context: BuildContext, name: str, config: LatentConfig) -> None:
        super().__init__(context, name, config)
        model = context.model
        self.g_proj = ColumnParallelLinear(
            context, f"{name}.g_proj", model.hidden_size, model.num_heads
        )

    def forward(
        self, x: torch.Tensor, rope: Rope, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        return self.o_proj(open_heads(self.attended(x, rope), self.g_proj(x)), residual)


class BailingHybridLayer(KimiLinearLayer):
    """One layer: the delta rule or latent attention, and experts in all but the first layers."""

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the delta rule."""
        return WideDeltaMixer(context, name, delta_sizes(context.model.hf_config))

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return GatedLatentAttention(context, name, latent_config(context))


class BailingHybridModel(HybridModel, DeepseekModel):
    """The layers; only those that attend are rotated."""


class BailingHybridForCausalLM(DeepseekV3ForCausalLM):
    """Ling 3 with a head."""

    info = Info(
        summary="Ling 3: delta rule by channel, latent attention, mixture of experts",
        source="https://huggingface.co/inclusionAI",
    )
    model_class = BailingHybridModel
    layer_class = BailingHybridLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names."""
        usual = super().weight_map()
        kinds = enumerate(self.model.config.layer_types)
        learning = [f"model.layers.{i}.self_attn." for i, kind in kinds if kind == LINEAR]
        return replace(
            usual,
            prefixes=(("model.word_embeddings.", "model.embed_tokens."), *usual.prefixes),
            renames=(*NAMES, *usual.renames),
            parts=dict.fromkeys(learning, WeightMap(renames=(FORGETS,), fused=IN_DELTA)),
        )
