"""StarCoder 2: Llama with layer norms, biases, and an MLP without a gate.

Source: Lozhkov et al., StarCoder 2 and The Stack v2, 2024.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    usual_config,
    window_in_all_layers,
)
from dovetail.layers.norm import LayerNorm


class Starcoder2ForCausalLM(DecoderForCausalLM):
    """StarCoder 2 with a head."""

    info = Info(summary="StarCoder 2", source="https://arxiv.org/abs/2402.19173")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        config = model.hf_config
        has_bias = bool(config["use_bias"])
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(config["norm_epsilon"]),
            has_qkv_bias=has_bias,
            has_out_bias=has_bias,
            has_mlp_bias=has_bias,
            is_gated=False,
            **window_in_all_layers(model),
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        renames = ((".c_fc.", ".up_proj."), (".c_proj.", ".down_proj."))
        return replace(super().weight_map(), renames=renames)
