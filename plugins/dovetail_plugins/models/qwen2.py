"""Qwen2 and Qwen2.5: Llama with biases on q, k, v. Source: Yang et al. 2024."""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail_plugins.models._qwen import qwen_window_layers


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Qwen2 with a head."""

    info = Info(summary="Qwen2 and Qwen2.5", source="https://arxiv.org/abs/2407.10671")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: biases on q, k, v whatever config.json says."""
        return usual_config(
            model, has_qkv_bias=True, has_out_bias=False, **qwen_window_layers(model)
        )
