"""Seed-OSS: Llama with biases of q, k and v. Source: the model card of Seed-OSS-36B-Instruct."""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class SeedOssForCausalLM(DecoderForCausalLM):
    """Seed-OSS with a head."""

    info = Info(
        summary="Seed-OSS", source="https://huggingface.co/ByteDance-Seed/Seed-OSS-36B-Instruct"
    )

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config; a separate field says whether o_proj has a bias."""
        return usual_config(model, has_out_bias=bool(model.hf_config["attention_out_bias"]))
