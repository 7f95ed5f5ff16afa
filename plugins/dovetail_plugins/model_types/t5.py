"""Facts of T5's encoders: positions are biases alone, and every size has its own name."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="relative",
    has_position_bias=True,
    overflows_in_float16=True,
    is_encoder=True,
    pooler="mean",
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

T5 = Value(summary="T5", value=FACTS)
MT5 = Value(summary="mT5", value=MANY_LANGUAGES)
UMT5 = Value(summary="UMT5", value=MANY_LANGUAGES)
