"""GPT-NeoX and Pythia: parallel attention and MLP, each after a layer norm, a quarter of each head
rotated, and q, k and v in one matrix, interleaved by head.

Source: Black et al., GPT-NeoX-20B, 2022; the names are from its checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.linear import GROUPS
from dovetail.layers.norm import LayerNorm

PREFIXES = (
    ("embed_out.", "lm_head."),
    ("classifier.", "score."),
    ("gpt_neox.embed_in.", "model.embed_tokens."),
    ("gpt_neox.final_layer_norm.", "model.norm."),
    ("gpt_neox.layers.", "model.layers."),
    ("embed_in.", "model.embed_tokens."),
    ("final_layer_norm.", "model.norm."),
    ("layers.", "model.layers."),
)
RENAMES = (
    (".attention.", ".self_attn."),
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".dense_h_to_4h.", ".up_proj."),
    (".dense_4h_to_h.", ".down_proj."),
)


class GPTNeoXForCausalLM(DecoderForCausalLM):
    """GPT-NeoX with a head."""

    info = Info(summary="GPT-NeoX and Pythia", source="https://arxiv.org/abs/2204.06745")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        config = model.hf_config
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(config["layer_norm_eps"]),
            has_mlp_bias=True,
            is_gated=False,
            parallel_norms=2 if config["use_parallel_residual"] else 0,
            rotary_share=0.25,
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(
            super().weight_map(),
            prefixes=PREFIXES,
            renames=RENAMES,
            fused={"query_key_value": ("qkv_proj", GROUPS)},
            ignored=(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
        )
