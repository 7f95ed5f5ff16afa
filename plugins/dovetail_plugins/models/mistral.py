"""Mistral: Llama with a sliding window in every layer. Source: Jiang et al. 2023."""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    usual_config,
    window_in_all_layers,
    windows_by_layer,
)


class MistralForCausalLM(DecoderForCausalLM):
    """Mistral with a head."""

    info = Info(summary="Mistral (sliding window)", source="https://arxiv.org/abs/2310.06825")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config, windowed if config.json gives a window: in all layers, or in the
        listed ones, which transformers reads as Ministral."""
        has_list = bool(model.hf_config.get("layer_types"))
        windows = windows_by_layer(model, every=0) if has_list else window_in_all_layers(model)
        return usual_config(model, **windows)
