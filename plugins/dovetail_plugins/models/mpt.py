"""MPT: ALiBi, no biases anywhere, queries, keys and values bounded, tied head.

Source: MosaicML 2023, "Introducing MPT-7B".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.models._named import leaves, prefixes

PREFIXES = prefixes(
    ("wte.", "model.embed_tokens."), ("blocks.", "model.layers."), ("norm_f.", "model.norm.")
)
RENAMES = leaves(
    {
        "norm_1": "input_layernorm",
        "norm_2": "post_attention_layernorm",
        "attn.Wqkv": "self_attn.qkv_proj",
        "attn.out_proj": "self_attn.o_proj",
        "ffn.up_proj": "mlp.up_proj",
        "ffn.down_proj": "mlp.down_proj",
    }.items()
)
ONLY: dict[str, tuple[Any, ...]] = {
    "attn_config.alibi": (True,),
    "attn_config.attn_type": ("multihead_attention",),
    "attn_config.prefix_lm": (False,),
    "attn_config.qk_ln": (False,),
    "logit_scale": (None,),
    "no_bias": (True,),
}
"""Supported settings of a config.json: transformers supports no others either."""


class MptForCausalLM(DecoderForCausalLM):
    """MPT with its tied head."""

    info = Info(summary="MPT (ALiBi)", source="https://www.databricks.com/blog/mpt-7b")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError for unsupported variants"""
        facts = model.hf_config
        attention: Mapping[str, Any] = facts.get("attn_config") or {}
        _check(facts, attention)
        exponent = float(attention.get("alibi_bias_max") or 8)
        return usual_config(
            model,
            norm=partial(LayerNorm, bias=False),
            norm_eps=float(facts["layer_norm_epsilon"]),
            hidden_act="gelu",
            is_gated=False,
            inner_size=int(facts["expansion_ratio"] * model.hidden_size),
            has_mlp_bias=False,
            qkv_clip=attention.get("clip_qkv") or None,
            query_scale=attention.get("softmax_scale"),
            alibi_slopes=alibi_slopes(model.num_heads, last_exponent=exponent),
        )

    def weight_map(self) -> WeightMap:
        """Return the names; queries, keys and values come as one matrix."""
        return replace(super().weight_map(), prefixes=PREFIXES, renames=RENAMES, fused={})


def _check(facts: Mapping[str, Any], attention: Mapping[str, Any]) -> None:
    """Raises: ConfigError for a setting that is not among ONLY"""
    for name, allowed in ONLY.items():
        holder = attention if name.startswith("attn_config.") else facts
        value = holder.get(name.removeprefix("attn_config."), allowed[0])
        if value not in allowed:
            raise ConfigError(
                f"{value!r} is not supported.",
                where=f"config.json: {name}",
                fix=f"only models with {allowed[0]!r} can be served.",
            )
