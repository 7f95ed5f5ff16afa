"""GLM-4 (glm-4-9b-hf) and GLM-4-0414: half of each head rotated, in pairs of neighbours, gate and
up stored as one matrix; then attention and MLP between two norms each.

Source: GLM Team, ChatGLM, 2024; the model card of GLM-4-32B-0414.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.layers.post_norm import SandwichLayer

SANDWICH = (
    (".post_attention_layernorm.", ".pre_feedforward_layernorm."),
    (".post_self_attn_layernorm.", ".post_attention_layernorm."),
    (".post_mlp_layernorm.", ".post_feedforward_layernorm."),
)
"""GLM-4-0414's names of its norms, in this order -> the layer's names."""


class GlmForCausalLM(DecoderForCausalLM):
    """GLM-4 with a head."""

    info = Info(summary="GLM-4", source="https://arxiv.org/abs/2406.12793")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        return usual_config(model, has_out_bias=False, is_interleaved=True, rotary_share=0.5)


class Glm4ForCausalLM(GlmForCausalLM):
    """GLM-4-0414 with a head."""

    info = Info(summary="GLM-4-0414", source="https://huggingface.co/zai-org/GLM-4-32B-0414")
    layer_class = SandwichLayer

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), renames=SANDWICH)
