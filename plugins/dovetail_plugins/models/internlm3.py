"""InternLM3: Llama whose config.json has other names for its biases.

Source: the model card of internlm3-8b-instruct.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class InternLM3ForCausalLM(DecoderForCausalLM):
    """InternLM3 with a head."""

    info = Info(summary="InternLM3", source="https://huggingface.co/internlm/internlm3-8b-instruct")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: `bias` is that of o_proj and the MLP, `qkv_bias` of the rest."""
        config = model.hf_config
        has_bias = bool(config["mlp_bias"])
        return usual_config(model, has_out_bias=has_bias, has_mlp_bias=has_bias)
