"""StableLM 3B and StableLM 2: Llama with layer norms and a quarter of each head rotated; 12B has a
layer norm for each head, and parallel attention and MLP.

Source: Bellagente et al., Stable LM 2 1.6B, 2024.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.layers.attention.head_norm import LayerNormPerHead


class StableLmForCausalLM(DecoderForCausalLM):
    """StableLM with a head."""

    info = Info(summary="StableLM", source="https://arxiv.org/abs/2402.17834")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        config = model.hf_config
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(config["layer_norm_eps"]),
            has_qkv_bias=bool(config["use_qkv_bias"]),
            has_out_bias=False,
            parallel_norms=1 if config["use_parallel_residual"] else 0,
            qk_norm=bool(config["qk_layernorm"]),
            head_norm=LayerNormPerHead,
            rotary_share=0.25,
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        renames = ((".q_layernorm.", ".q_norm."), (".k_layernorm.", ".k_norm."))
        return replace(super().weight_map(), renames=renames)
