"""Helium and dense ERNIE 4.5: Llama whose rotated pairs are neighbours.

Sources: the model card of helium-1-2b; Baidu ERNIE Team, ERNIE 4.5 Technical Report, 2025.
"""

from __future__ import annotations

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config


class HeliumForCausalLM(DecoderForCausalLM):
    """Helium with a head."""

    info = Info(summary="Helium", source="https://huggingface.co/kyutai/helium-1-2b")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        return usual_config(model, has_out_bias=False, is_interleaved=True, rope_theta=1e5)


class Ernie45ForCausalLM(DecoderForCausalLM):
    """Dense ERNIE 4.5 with a head."""

    info = Info(summary="ERNIE 4.5, dense", source="https://huggingface.co/baidu/ERNIE-4.5-0.3B-PT")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: all linear layers have a bias, or none."""
        has_bias = bool(model.hf_config["use_bias"])
        return usual_config(
            model,
            has_qkv_bias=has_bias,
            has_out_bias=has_bias,
            has_mlp_bias=has_bias,
            is_interleaved=True,
            rope_theta=5e5,
        )
