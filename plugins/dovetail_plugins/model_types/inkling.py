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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The layers that run `turns` times, and the numbers between the matrices of their gates."""

    layers: range
    turns: int
    rank: int


LOOP_NAMES = {
    "loop_layer_index_start": "core_start",
    "loop_layer_index_end": "core_end",
    "loop_num_passes": "num_passes",
    "loop_gate_rank": "gate_rank",
}
"""The settings of a loop, and their names within a released config.json's `loop_config`."""


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


def loop_of(config: Config) -> Loop | None:
    """Return the layers that run several times, None if none do. Raises: ConfigError for ones that
    do not begin and end with blocks."""
    if "loop_num_passes" not in config:
        return None
    stated = {
        name: config.get("loop_config", {}).get(other, config[name])
        for name, other in LOOP_NAMES.items()
    }
    first, last, turns, rank = (int(value) for value in stated.values())
    each = int(config["n_layers_per_attn_res_block"])
    if not 0 < first < last <= int(config["num_hidden_layers"]) or first % each or last % each:
        raise ConfigError(
            f"layers {first} to {last - 1} run several times, and are not whole blocks of {each}.",
            where="config.json: loop_layer_index_start",
            fix="use multiples of n_layers_per_attn_res_block after the first block.",
        )
    return Loop(layers=range(first, last), turns=turns, rank=rank)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, and the last inputs of four convolutions a layer,
    for each time that the layer runs."""
    kinds, loop = layer_types(config), loop_of(config)
    sizes = [heads(config, layer) for layer in range(len(kinds))]
    if loop is not None:
        kinds += kinds[loop.layers.start : loop.layers.stop] * (loop.turns - 1)
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

OF_INKLING2: dict[str, Any] = {
    "vocab_size": 201024,
    "unpadded_vocab_size": 200058,
    "hidden_size": 4608,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "swa_num_attention_heads": 48,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 128,
    "sliding_window_size": 1024,
    "d_rel": 16,
    "rel_extent": 1024,
    "log_scaling_n_floor": 128000,
    "log_scaling_alpha": 0.1,
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-6,
    "conv_kernel_size": 4,
    "hidden_act": "silu",
    "moe_intermediate_size": 2304,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "route_scale": 8.0,
    "eos_token_id": 200006,
    "qk_l2_clip_threshold": 22.627416997969522,
    "rel_l2_clip_threshold": 8.0,
    "n_layers_per_attn_res_block": 6,
    "mlp_gate_softcap": 4.0,
    "mlp_up_softcap": 25.0,
    "final_logit_softcapping": 30.0,
    "scoring_func": "sigmoid",
}
INKLING2_TEXT = Value(
    summary="the text part of Inkling 2",
    value=ModelFacts(positions="none", cache=f"{__name__}:cache", defaults=OF_INKLING2),
)
INKLING2_LOOP_TEXT = Value(
    summary="the text part of Inkling 2 with layers that run several times",
    value=ModelFacts(
        positions="none",
        cache=f"{__name__}:cache",
        defaults={
            **OF_INKLING2,
            "hidden_size": 2304,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "swa_num_attention_heads": 24,
            "log_scaling_n_floor": 8192,
            "moe_intermediate_size": 1152,
            "n_routed_experts": 128,
            "loop_layer_index_start": 6,
            "loop_layer_index_end": 18,
            "loop_num_passes": 3,
            "loop_gate_rank": 64,
        },
    ),
)
