"""Facts of T5: positions are only biases, and every size has its own name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="relative",
    has_position_bias=True,
    overflows_in_float16=True,
    is_encoder=True,
    pooler="mean",
    cache="dovetail_plugins.model_types.t5:kept",
    encoder_input="text",
    defaults={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "decoder_start_token_id": 0,
    },
    attribute_map={
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "layer_norm_eps": "layer_norm_epsilon",
    },
)

MANY_LANGUAGES = dataclasses.replace(
    FACTS,
    defaults={
        **FACTS.defaults,
        "vocab_size": 250112,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    },
)


def num_decoder_layers(config: Mapping[str, Any]) -> int:
    """Return the layers of the decoder: by default as many as the encoder has."""
    return int(config.get("num_decoder_layers") or config["num_layers"])


def kept(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: each layer its tokens and the encoder's output."""
    count = num_decoder_layers(config)
    return CacheFacts(num_attention_layers=count, num_cross_layers=count)


T5 = Value(summary="T5", value=FACTS)
MT5 = Value(summary="mT5", value=MANY_LANGUAGES)
UMT5 = Value(summary="UMT5", value=MANY_LANGUAGES)
