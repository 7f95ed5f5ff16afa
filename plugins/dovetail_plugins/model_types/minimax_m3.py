"""Facts of MiniMax M3: its media, and what a row of the text model caches, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

SPARSE = "minimax_m3_sparse"
"""The type of layers that pick blocks."""
RELEASED = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""transformers' name of a setting -> that in the `sparse_attention_config` of released models."""


def index_settings(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the indexers, by transformers' names."""
    released = config.get("sparse_attention_config") or {}
    return {name: int(released.get(other, config[name])) for name, other in RELEASED.items()}


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer picks blocks."""
    listed = config.get("layer_types")
    if listed is not None:
        return bool(listed[layer] == SPARSE)
    numbers = (config.get("sparse_attention_config") or {}).get("sparse_attention_freq")
    return numbers is not None and bool(numbers[layer])


def cache(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: keys and values in every layer, and an indexer's keys, whose blocks
    are as large as those of one kv head."""
    layers, heads = int(config["num_hidden_layers"]), int(config["num_key_value_heads"])
    picking = sum(is_sparse(config, layer) for layer in range(layers))
    return CacheFacts(num_attention_layers=layers - (-picking // heads))


MINIMAX_M3_VL = Value(summary="MiniMax M3", value=ModelFacts(media=("image",)))
MINIMAX_M3 = Value(
    summary="the text part of MiniMax M3",
    value=ModelFacts(
        cache=f"{__name__}:cache",
        defaults={
            "vocab_size": 200064,
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 200034,
            "eos_token_id": 200020,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
            "routed_scaling_factor": 2.0,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "index_n_heads": 4,
            "index_head_dim": 128,
            "index_block_size": 128,
            "index_topk_blocks": 16,
            "index_local_blocks": 1,
        },
    ),
)
