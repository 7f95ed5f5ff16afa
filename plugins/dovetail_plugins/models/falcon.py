"""Falcon: attention and MLP side by side, one kv head or a few, rotary positions or ALiBi.

The 7B has one kv head and one norm for both branches. The 40B, 180B and 11B ("new decoder
architecture") have groups of heads and two norms or one. The RefinedWeb models have as many kv
heads as query heads, sequential branches, and ALiBi, whose slopes are scaled like the products.
Source: Almazrouei et al. 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.models._named import FUSED_BY_GROUP, MEGATRON, leaves, prefixes

PREFIXES = prefixes(
    ("word_embeddings.", "model.embed_tokens."),
    ("h.", "model.layers."),
    ("ln_f.", "model.norm."),
)
TWO_NORMS = leaves([("ln_attn", "input_layernorm"), ("ln_mlp", "post_attention_layernorm")])


class FalconForCausalLM(DecoderForCausalLM):
    """Falcon with a head."""

    info = Info(summary="Falcon", source="https://arxiv.org/abs/2311.16867")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        facts = model.hf_config
        has_bias, scale = bool(facts["bias"]), model.head_size**-0.5
        slopes = tuple(slope * scale for slope in alibi_slopes(model.num_heads))
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(facts["layer_norm_epsilon"]),
            hidden_act=str(facts["activation"]),
            has_qkv_bias=has_bias,
            has_out_bias=has_bias,
            has_mlp_bias=has_bias,
            is_gated=False,
            inner_size=int(facts.get("ffn_hidden_size") or 4 * model.hidden_size),
            parallel_norms=_parallel_norms(facts),
            alibi_slopes=slopes if facts.get("alibi") else None,
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        renames = (*MEGATRON, *TWO_NORMS)
        usual = super().weight_map()
        return replace(usual, prefixes=PREFIXES, renames=renames, fused=FUSED_BY_GROUP)


def _parallel_norms(facts: dict[str, Any]) -> int:
    """Return how many norms read a layer's input: 0 if its branches are sequential."""
    if not facts.get("new_decoder_architecture"):
        return 1 if facts.get("parallel_attn") else 0
    count = facts.get("num_ln_in_parallel_attn")
    return 2 if count is None else int(count)
