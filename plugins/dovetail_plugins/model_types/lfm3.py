"""LFM3: which layers are convolutions and which have windows, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.lfm2 import CONV, state_facts

Config = Mapping[str, Any]


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind as listed in config.json; else two of four attend, one of them with
    a window, but never the first layer."""
    kinds = config.get("layer_types")
    if kinds:
        return tuple(kinds)
    usual = ("sliding_attention", CONV, "full_attention", CONV)
    return tuple(usual[i % 4] if i else CONV for i in range(int(config["num_hidden_layers"])))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, or the last inputs of a convolution."""
    return state_facts(config, layer_types(config))


LFM3 = Value(
    summary="LFM3",
    value=ModelFacts(
        has_two_rotary_tables=True,
        attribute_map={"rms_norm_eps": "norm_eps"},
        defaults={
            "vocab_size": 128000,
            "hidden_size": 2048,
            "intermediate_size": 7680,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 128000,
            "norm_eps": 1e-5,
            "conv_L_cache": 7,
            "conv_bias": False,
            "sliding_window": 256,
            "use_sandwich_norm": True,
            "use_attention_gate": True,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
        cache=f"{__name__}:cache",
    ),
)
