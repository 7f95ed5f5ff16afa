"""RWKV-4: config.json defaults, and what a row caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]


def channels(config: Config) -> int:
    """Return the channels of a layer's averages."""
    return int(config.get("attention_hidden_size") or config["hidden_size"])


def inner_size(config: Config) -> int:
    """Return the inner size of the feed-forward part."""
    return int(config.get("intermediate_size") or 4 * config["hidden_size"])


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: the last inputs of both parts of a layer, and its averages."""
    return CacheFacts(
        num_attention_layers=0,
        num_state_layers=int(config["num_hidden_layers"]),
        conv_numbers=2 * int(config["hidden_size"]),
        state_numbers=3 * channels(config),
    )


RWKV = Value(
    summary="RWKV-4",
    value=ModelFacts(
        positions="none",
        defaults={
            "vocab_size": 50277,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 1,  # no attention: it has no meaning
            "head_dim": 64,
            "context_length": 1024,
            "layer_norm_epsilon": 1e-5,
            "rescale_every": 6,
            "tie_word_embeddings": False,
        },
        attribute_map={"max_position_embeddings": "context_length"},
        cache=f"{__name__}:cache",
    ),
)
