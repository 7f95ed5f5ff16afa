"""Facts of Inkling's text part: the kinds and sizes of its layers, what a row caches, and
config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
WHOLE, WINDOWED = "hybrid", "hybrid_sliding"
"""The kinds of layers in config.json: attention to all tokens, or within a window. All have
convolutions, too."""
WINDOW_EVERY = 6
"""All but each such layer have a window, if config.json does not list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """The heads of one layer: how many for queries, for keys and values, and their size."""

    num_heads: int
    num_kv_heads: int
    size: int


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as listed or by the numbers of windowed ones. Raises: ConfigError
    for another kind."""
    listed = config.get("layer_types")
    if not listed:
        count = int(config["num_hidden_layers"])
        local = config.get("local_layer_ids")
        near = [i for i in range(count) if (i + 1) % WINDOW_EVERY] if local is None else local
        listed = [WINDOWED if i in near else WHOLE for i in range(count)]
    unknown = sorted(set(listed) - {WHOLE, WINDOWED})
    if unknown:
        raise ConfigError(
            f"layers are of the kind {unknown[0]}.",
            where="config.json: layer_types",
            fix=f"use {WHOLE} and {WINDOWED}.",
        )
    return tuple(listed)


def heads(config: Config, layer: int) -> HeadSizes:
    """Return the heads of a layer."""
    prefix = "swa_" if layer_types(config)[layer] == WINDOWED else ""
    return HeadSizes(
        num_heads=int(config[f"{prefix}num_attention_heads"]),
        num_kv_heads=int(config[f"{prefix}num_key_value_heads"]),
        size=int(config[f"{prefix}head_dim"]),
    )


def is_sparse(config: Config, layer: int) -> bool:
    """Return whether a layer has experts: as listed, or all after the first dense ones."""
    listed = config.get("mlp_layer_types")
    if listed is not None:
        return bool(listed[layer] == "sparse")
    return layer >= int(config.get("dense_mlp_idx") or 0)


def inner_sizes(config: Config) -> tuple[int, int]:
    """Return the inner sizes of an MLP and of an expert. Where config.json states the MLP's
    apart, its usual name is the experts'."""
    dense, usual = config.get("dense_intermediate_size"), int(config["intermediate_size"])
    return (usual, int(config["moe_intermediate_size"])) if dense is None else (int(dense), usual)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, and the last inputs of four convolutions a
    layer."""
    kinds = layer_types(config)
    sizes = [heads(config, layer) for layer in range(len(kinds))]
    usual = int(config["num_key_value_heads"]), int(config["head_dim"])
    others = {(one.num_kv_heads, one.size) for one in sizes} - {usual}
    width = max(2 * one.num_kv_heads * one.size for one in sizes) + 2 * int(config["hidden_size"])
    return CacheFacts(
        num_attention_layers=kinds.count(WHOLE),
        num_windowed_layers=kinds.count(WINDOWED),
        windowed_tokens=int(config["sliding_window_size"]),
        num_state_layers=len(kinds),
        conv_numbers=width * (int(config["conv_kernel_size"]) - 1),
        second_heads=next(iter(others), None),
    )


INKLING_TEXT = Value(
    summary="the text part of Inkling",
    value=ModelFacts(
        positions="none",
        cache=f"{__name__}:cache",
        defaults={
            "vocab_size": 201024,
            "hidden_size": 6144,
            "num_hidden_layers": 66,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 16,
            "swa_head_dim": 128,
            "sliding_window_size": 512,
            "d_rel": 16,
            "rel_extent": 1024,
            "log_scaling_alpha": 0.1,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "conv_kernel_size": 4,
            "intermediate_size": 24576,
            "hidden_act": "silu",
            "moe_intermediate_size": 3072,
            "n_routed_experts": 256,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "route_scale": 8.0,
            "logits_mup_width_multiplier": 24.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
)
