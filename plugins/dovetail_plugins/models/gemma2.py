"""Gemma 2: norms before and after each part, windows in every other layer, soft caps.

Source: Gemma Team 2024, Gemma 2.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FULL, SLIDING, DecoderConfig, DecoderForCausalLM
from dovetail_plugins.layers.post_norm import SandwichLayer
from dovetail_plugins.models.gemma import gemma_config


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Gemma 2 with a head."""

    info = Info(summary="Gemma 2", source="https://arxiv.org/abs/2408.00118")
    layer_class = SandwichLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma 2's config: even layers slide."""
        config = model.hf_config
        derived = [FULL if i % 2 else SLIDING for i in range(model.num_layers)]
        return gemma_config(
            model,
            layer_types=tuple(config.get("layer_types") or derived),
            window_tokens=config.get("sliding_window", 4096),
            query_scale=float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
            attn_logit_softcap=config.get("attn_logit_softcapping", 50.0),
            final_logit_softcap=config.get("final_logit_softcapping", 30.0),
        )
