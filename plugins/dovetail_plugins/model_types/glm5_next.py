"""Facts of GLM-5-Next's text part: the kinds of layers, the sizes of delta layers, what a row
caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.kimi_linear import OWN, delta_cache, linear_size
from dovetail_plugins.model_types.qwen3_next import LINEAR

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

Config = Mapping[str, Any]
LEAST_LOG = -5.0
"""Of a released config.json that bounds decays and does not say how far."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: as listed, or every fourth attends."""
    listed = config.get("layer_types")
    if listed:
        return tuple(LINEAR if kind == LINEAR else "full_attention" for kind in listed)
    count = int(config["num_hidden_layers"])
    return tuple("full_attention" if i % 4 == 3 else LINEAR for i in range(count))


def delta_sizes(config: Config) -> DeltaSizes:
    """Return the sizes of a delta layer."""
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

    heads, size, conv = (linear_size(config, name) for name in _SIZES)
    released: Config = config.get("linear_attn_config") or {}
    bound = released.get("gate_lower_bound", config["linear_lower_bound"])
    if bound is None and released and released.get("safe_gate", True):
        bound = LEAST_LOG
    return DeltaSizes(
        key_heads=heads,
        value_heads=heads,
        key_size=size,
        value_size=size,
        conv=conv,
        act=config["hidden_act"],
        eps=float(config["rms_norm_eps"]),
        least_log=float(bound or 0.0),
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a latent with a key and a gate of the indexer, or the last inputs
    of a convolution and a matrix for each head."""
    heads, size, conv = (linear_size(config, name) for name in _SIZES)
    found = delta_cache(config, layer_types(config), heads=heads, size=size, conv=conv)
    return msgspec.structs.replace(found, index_size=2 * int(config["index_head_dim"]))


_SIZES = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
assert set(_SIZES) == set(OWN)
GLM5_NEXT = Value(
    summary="the text part of GLM-5-Next",
    value=ModelFacts(
        positions="none",
        cache=f"{__name__}:cache",
        defaults={
            "vocab_size": 154880,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 45,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_shared_experts": 1,
            "n_routed_experts": 288,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
            "hidden_act": "silu",
            "swiglu_limit": 10.0,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 154820,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 256,
            "qk_rope_head_dim": 0,
            "v_head_dim": 256,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 32,
            "index_kpool": 16,
            "index_kpool_always_select_tail": True,
            "linear_head_dim": 128,
            "linear_num_heads": 64,
            "linear_conv_kernel_dim": 4,
            "linear_lower_bound": -5.0,
            "hc_mult": 4,
            "hc_eps": 1e-6,
            "hc_sinkhorn_iters": 20,
        },
    ),
)
