"""MiniCPM 1, 2 and 4: Llama with embeddings, residual branches and logits that are scaled.

Source: Hu et al., MiniCPM, 2024.
"""

from __future__ import annotations

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class MiniCPMForCausalLM(DecoderForCausalLM):
    """MiniCPM with a head."""

    info = Info(summary="MiniCPM 1, 2 and 4", source="https://arxiv.org/abs/2404.06395")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError for the one with experts."""
        config = model.hf_config
        if config.get("num_experts"):
            raise ConfigError(
                "MiniCPM with experts is not supported.", where="config.json: num_experts"
            )
        return usual_config(
            model,
            embedding_scale=float(config["scale_emb"]),
            branch_scale=float(config["scale_depth"]) / model.num_layers**0.5,
            logit_scale=float(config["dim_model_base"]) / model.hidden_size,
        )
