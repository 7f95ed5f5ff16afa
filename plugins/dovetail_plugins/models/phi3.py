"""Phi-3 and Phi-4 (text): Llama whose checkpoint stores q, k, v and gate, up already fused.

Source: Abdin et al. 2024.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    usual_config,
    window_in_all_layers,
)


class Phi3ForCausalLM(DecoderForCausalLM):
    """Phi-3 with a head."""

    info = Info(summary="Phi-3 and Phi-4, text", source="https://arxiv.org/abs/2404.14219")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config without biases, windowed if config.json gives a window."""
        return usual_config(
            model, has_qkv_bias=False, has_out_bias=False, **window_in_all_layers(model)
        )
