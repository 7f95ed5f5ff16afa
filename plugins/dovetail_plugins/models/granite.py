"""Granite 3: Llama with multipliers of embeddings, attention scores, residual branches and logits.

Source: Granite Team, Granite 3.0 Language Models, 2024.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class GraniteForCausalLM(DecoderForCausalLM):
    """Granite with a head."""

    info = Info(
        summary="Granite 3", source="https://huggingface.co/ibm-granite/granite-3.0-8b-base"
    )

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config with its multipliers."""
        config = model.hf_config
        return usual_config(
            model,
            embedding_scale=float(config["embedding_multiplier"]),
            query_scale=float(config["attention_multiplier"]),
            branch_scale=float(config["residual_multiplier"]),
            logit_scale=1.0 / float(config["logits_scaling"]),
        )
