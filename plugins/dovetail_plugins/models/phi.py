"""Phi-1, 1.5 and 2: parallel attention and MLP after one layer norm, a part of each head rotated,
biases everywhere, also in the head.

Source: Gunasekar et al., Textbooks Are All You Need, 2023.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import BARE, DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.attention.head_norm import LayerNormOfHeads

PREFIXES = (
    ("model.final_layernorm.", "model.norm."),
    ("final_layernorm.", "model.norm."),
    *BARE,
)
RENAMES = (
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".q_layernorm.", ".q_norm."),
    (".k_layernorm.", ".k_norm."),
    (".fc1.", ".up_proj."),
    (".fc2.", ".down_proj."),
)


class PhiForCausalLM(DecoderForCausalLM):
    """Phi-2 and those before it, with a head."""

    info = Info(summary="Phi-1, 1.5 and 2", source="https://arxiv.org/abs/2306.11644")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        config = model.hf_config
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(config["layer_norm_eps"]),
            has_qkv_bias=True,
            has_out_bias=True,
            has_mlp_bias=True,
            has_head_bias=True,
            is_gated=False,
            parallel_norms=1,
            qk_norm=bool(config["qk_layernorm"]),
            head_norm=LayerNormOfHeads,
            rotary_share=0.5,
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), prefixes=PREFIXES, renames=RENAMES)
