"""EXAONE 3 and 4: Llama with other names; version 4 has norms after attention and MLP, norms of
heads, and windows, with positions only in windowed layers.

Sources: LG AI Research, EXAONE 3.0, 2024, and EXAONE 4.0, 2025; names from their checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import (
    FULL,
    DecoderConfig,
    DecoderForCausalLM,
    usual_config,
    windows_by_layer,
)
from dovetail_plugins.layers.post_norm import PostNormLayer

PREFIXES = (
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.ln_f.", "model.norm."),
    ("transformer.h.", "model.layers."),
    ("wte.", "model.embed_tokens."),
    ("ln_f.", "model.norm."),
    ("h.", "model.layers."),
)
RENAMES = (
    (".ln_1.", ".input_layernorm."),
    (".ln_2.", ".post_attention_layernorm."),
    (".attn.attention.", ".self_attn."),
    (".out_proj.", ".o_proj."),
    (".c_fc_0.", ".gate_proj."),
    (".c_fc_1.", ".up_proj."),
    (".c_proj.", ".down_proj."),
)


class ExaoneForCausalLM(DecoderForCausalLM):
    """EXAONE 3 and 3.5 with a head."""

    info = Info(summary="EXAONE 3 and 3.5", source="https://arxiv.org/abs/2408.03541")

    def weight_map(self) -> WeightMap:
        """Return the names of the released checkpoints, and Llama's."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(*PREFIXES, *usual.prefixes),
            renames=RENAMES,
            ignored=(".rotary.inv_freq", ".attention.bias", ".attention.masked_bias"),
        )


class Exaone4ForCausalLM(DecoderForCausalLM):
    """EXAONE 4 with a head."""

    info = Info(summary="EXAONE 4", source="https://arxiv.org/abs/2507.11407")
    layer_class = PostNormLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: if some layers have windows, the full ones have no positions."""
        pattern = model.hf_config.get("sliding_window_pattern") or 0
        every = len(pattern) if isinstance(pattern, str) else int(pattern)
        windows = windows_by_layer(model, every=every if model.hf_config["sliding_window"] else 0)
        layer_types, window = windows["layer_types"], windows["window_tokens"]
        full = frozenset(i for i, kind in enumerate(layer_types) if kind == FULL)
        unrotated = full if window else frozenset()
        return usual_config(model, qk_norm=True, unrotated=unrotated, **windows)
