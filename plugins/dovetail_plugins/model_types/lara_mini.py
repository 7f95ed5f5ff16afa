"""Facts of Lara Mini: the kinds of layers, what a row caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.qwen3_next import LINEAR, delta_cache

Config = Mapping[str, Any]
PERIOD = (LINEAR, "sliding_attention", LINEAR, "full_attention", "sliding_attention")
"""The repeating layer kinds, if config.json lists none."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind."""
    count = int(config["num_hidden_layers"])
    return tuple(config.get("layer_types") or (PERIOD[i % len(PERIOD)] for i in range(count)))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    return delta_cache(layer_types(config), config)


LARA_MINI = Value(
    summary="Lara Mini",
    value=ModelFacts(
        defaults={
            "hidden_size": 1024,
            "num_hidden_layers": 34,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 151643,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 16,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 4,
            "num_experts": 128,
            "norm_topk_prob": True,
            "sliding_window": 512,
        },
        cache=f"{__name__}:cache",
    ),
)
