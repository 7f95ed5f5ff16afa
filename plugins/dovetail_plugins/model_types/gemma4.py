"""Facts of Gemma 4's text model: the heads of its layers, and config.json defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._shared_kv import FULL, kinds, sources

FULL_EVERY = 6
"""Every N-th layer has full attention, if config.json does not list them."""
GLOBAL_HEAD_SIZE = 512
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
}
"""The rotations of a config.json that states none."""


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's kind of attention; the last one sees everything in any case."""
    return (*kinds(config, every=FULL_EVERY)[:-1], FULL)


def heads(config: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Return the KV heads of a layer, and their size: in full-attention layers they may differ,
    which config.json says layer by layer or for all of them."""
    usual = int(config["num_key_value_heads"]), int(config["head_dim"])
    listed = config.get("per_layer_config")
    if listed is not None:
        own = listed.get(str(layer)) or {}
        count, size = own.get("num_key_value_heads"), own.get("head_dim")
    elif layer_types(config)[layer] == FULL:
        count = config.get("num_global_key_value_heads") if keys_are_values(config) else None
        size = config.get("global_head_dim", GLOBAL_HEAD_SIZE)
    else:
        return usual
    return int(count or usual[0]), int(size or usual[1])


def keys_are_values(config: Mapping[str, Any]) -> bool:
    """Return whether layers that see everything make keys and values by one matrix."""
    return bool(config.get("attention_k_eq_v"))


def cache(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: nothing in the last layers if they share other layers' caches.

    Raises: ConfigError if heads have more than two shapes.
    """
    found = sources(config, layer_types(config))
    usual = int(config["num_key_value_heads"]), int(config["head_dim"])
    others = {heads(config, layer) for layer in range(len(found))} - {usual}
    if len(others) > 1:
        raise ConfigError(
            f"layers have KV heads of {len(others) + 1} shapes, and two are supported.",
            where="config.json: per_layer_config",
        )
    return CacheFacts(
        num_attention_layers=len(set(found)),
        sources=found,
        second_heads=next(iter(others), None),
    )


FACTS = ModelFacts(
    overflows_in_float16=True,
    length_is_scaled=True,
    has_two_rotary_tables=True,
    cache=f"{__name__}:cache",
    defaults={
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 0,
    },
)

GEMMA4_TEXT = Value(summary="Gemma 4, text only", value=FACTS)
GEMMA4 = Value(
    summary="Gemma 4 with its encoders, whose text model has its own settings",
    value=dataclasses.replace(
        FACTS,
        defaults={},
        cache="",
        media=("image", "audio"),
        media_see_all="use_bidirectional_attention",
    ),
)
