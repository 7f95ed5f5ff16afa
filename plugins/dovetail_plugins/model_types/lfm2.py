"""LFM2: which layers are convolutions, and how large the MLPs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

CONV = "conv"


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's kind, as config.json lists them or by the numbers that attend."""
    kinds = config.get("layer_types")
    if kinds:
        return tuple(kinds)
    count = int(config["num_hidden_layers"])
    attend = config.get("full_attn_idxs")
    attend = range(count) if attend is None else attend
    return tuple("full_attention" if i in attend else CONV for i in range(count))


def inner_size(config: Mapping[str, Any]) -> int:
    """Return the inner size of the MLPs, adjusted by a rule if requested."""
    size = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    factor = config.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return size
    multiple = int(config.get("block_multiple_of", 256))
    return -(-int(factor * size) // multiple) * multiple


def cache(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches."""
    return state_facts(config, layer_types(config))


def state_facts(config: Mapping[str, Any], kinds: Sequence[str]) -> CacheFacts:
    """Return what a row caches: keys and values, or the last inputs of a convolution."""
    num_states = kinds.count(CONV)
    return CacheFacts(
        num_attention_layers=int(config["num_hidden_layers"]) - num_states,
        num_state_layers=num_states,
        conv_numbers=int(config["hidden_size"]) * (int(config.get("conv_L_cache", 3)) - 1),
    )


LFM2 = Value(
    summary="LFM2",
    value=ModelFacts(
        defaults={
            "intermediate_size": 12288,
            "conv_L_cache": 3,
            "norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
        attribute_map={"tie_word_embeddings": "tie_embedding"},
        cache=f"{__name__}:cache",
    ),
)

LFM2_MOE = Value(
    summary="LFM2 with experts",
    value=ModelFacts(
        defaults={
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "use_expert_bias": True,
            "routed_scaling_factor": 1.0,
            "conv_L_cache": 3,
            "norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
        attribute_map={"tie_word_embeddings": "tie_embedding"},
        cache=f"{__name__}:cache",
    ),
)
