"""Facts of ZAYA1: the kinds of layers, what a row caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"
"""The kinds of layers in config.json: both attend after convolutions."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind."""
    return tuple(config.get("layer_types") or (HYBRID,) * int(config["num_hidden_layers"]))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, and the latest inputs of two convolutions and of
    the delayed values."""
    size, late = int(config["head_dim"]), int(config["num_key_value_heads"])
    heads = int(config["num_attention_heads"]) + late
    before = int(config["cca_time0"]) + int(config["cca_time1"]) - 2
    count = int(config["num_hidden_layers"])
    return CacheFacts(
        num_attention_layers=count,
        num_state_layers=count,
        conv_numbers=heads * size * before + late * size // 2,
    )


ZAYA = Value(
    summary="ZAYA1",
    value=ModelFacts(
        defaults={
            "vocab_size": 262272,
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 2,
            "eos_token_id": 106,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "lm_head_bias": False,
            "moe_intermediate_size": 2048,
            "num_experts": 16,
            "num_experts_per_tok": 1,
            "router_hidden_size": 256,
            "cca_time0": 2,
            "cca_time1": 2,
        },
        cache=f"{__name__}:cache",
    ),
)
