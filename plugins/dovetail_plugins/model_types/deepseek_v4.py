"""Facts of DeepSeek V4: the kinds of layers and the sizes of what they cache, as transformers and
as released checkpoints write them, and config.json defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dovetail.engine.kv.kv_groups import group_size
from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
SLIDING = "sliding_attention"
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
"""The kinds of layers: the last tokens alone, and with entries that an indexer picks, or with all
entries."""
RATES = {SPARSE: 4, HEAVY: 128}
"""The tokens of an entry, if config.json does not say. Released ones list them for each layer."""
TURNED = 0.125
"""The share of a head that is turned, if config.json does not say."""
NUM_HASHED = 3
"""The first layers, whose experts a table picks, if config.json does not list them."""


def rates(config: Config) -> dict[str, int]:
    """Return the tokens of an entry, by the kind of layer."""
    return {**RATES, **(config.get("compress_rates") or {})}


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: as listed, or by the listed tokens of its entries, or two heavily
    compressed layers and then both kinds in turn. Raises: ConfigError for an unknown kind"""
    count = int(config["num_hidden_layers"])
    listed = config.get("layer_types")
    if listed is None and config.get("compress_ratios") is not None:
        kinds = {0: SLIDING, RATES[SPARSE]: SPARSE, RATES[HEAVY]: HEAVY}
        listed = [kinds.get(rate, str(rate)) for rate in config["compress_ratios"]]
    if listed is None:
        listed = [HEAVY if i < 2 or i % 2 == 0 else SPARSE for i in range(count)]
    unknown = sorted(set(listed) - {SLIDING, SPARSE, HEAVY})
    if unknown:
        raise ConfigError(
            f"layers are of the kind {unknown[0]}.",
            where="config.json: layer_types, or compress_ratios",
            fix=f"use {SLIDING}, {SPARSE} and {HEAVY}.",
        )
    return tuple(listed[:count])


def is_hashed(config: Config, layer: int) -> bool:
    """Return whether a table of token ids picks a layer's experts."""
    listed = config.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "hash_moe")
    return layer < int(config.get("num_hash_layers", NUM_HASHED))


def turned_size(config: Config) -> int:
    """Return how many numbers of a head are turned; what transformers writes for a rotation counts
    first. Raises: ConfigError for an odd number"""
    own = (config.get("rope_parameters") or {}).get("compress") or {}
    share = own.get("partial_rotary_factor")
    size = config.get("qk_rope_head_dim") if share is None else None
    if size is None:
        share = share or config.get("partial_rotary_factor") or TURNED
        size = int(int(config["head_dim"]) * share)
    if int(size) % 2:
        raise ConfigError(
            f"{size} numbers of a head are turned, which are not pairs.",
            where="config.json: qk_rope_head_dim, or partial_rotary_factor",
            fix="use an even number, as published models have.",
        )
    return int(size)


def cached_tokens(config: Config) -> int:
    """Return of how many last tokens keys and compressors' inputs are cached, in every layer."""
    kinds, tokens = layer_types(config), rates(config)
    spans = [tokens[kind] * (1 + (kind == SPARSE)) for kind in set(kinds) - {SLIDING}]
    return max(int(config["sliding_window"]), *spans, 2)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: the keys and compressors' inputs of its last tokens, and entries.
    A block of entries has those of all layers, but is as large as a block of last tokens, and takes
    one in every tensor of the cache."""
    kinds, tokens = layer_types(config), rates(config)
    compressed = [kind for kind in kinds if kind != SLIDING]
    head, index = int(config["head_dim"]), int(config["index_head_dim"])
    sizes = {SPARSE: head + index, HEAVY: head}
    inputs = {SLIDING: 0, SPARSE: 4 * (head + index), HEAVY: 2 * head}
    entries = sum(sizes[kind] / tokens[kind] for kind in compressed)
    cell = max(head + max(inputs[kind] for kind in kinds), math.ceil(entries))
    count = group_size([1, len(kinds)]) if compressed else len(kinds)
    return CacheFacts(
        num_attention_layers=count if compressed else 1,
        latent_size=head,
        index_size=cell - head,
        num_windowed_layers=-(-len(kinds) // count) * count,
        windowed_tokens=cached_tokens(config),
        unit_tokens=math.lcm(*(tokens[kind] for kind in compressed)),
    )


DEEPSEEK_V4 = Value(
    summary="DeepSeek V4",
    value=ModelFacts(
        cache=f"{__name__}:cache",
        length_is_scaled=True,
        defaults={
            "vocab_size": 129280,
            "hidden_size": 4096,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 43,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "num_experts_per_tok": 6,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "max_position_embeddings": 1048576,
            "rope_theta": 10000.0,
            "compress_rope_theta": 160000.0,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "swiglu_limit": 10.0,
            "sliding_window": 128,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
    ),
)
