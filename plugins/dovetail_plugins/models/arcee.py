"""Arcee AFM: Llama whose MLP has no gate and squares its ReLU.

Source: the model card of AFM-4.5B.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class ArceeForCausalLM(DecoderForCausalLM):
    """Arcee AFM with a head."""

    info = Info(summary="Arcee AFM", source="https://huggingface.co/arcee-ai/AFM-4.5B")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        return usual_config(model, is_gated=False)
