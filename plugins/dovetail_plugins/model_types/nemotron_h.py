"""Nemotron-H: the kinds of its layers, the sizes of its mixers, and what a row caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

Config = Mapping[str, Any]
MIXER, ATTENTION, MLP, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_LETTERS = {"M": MIXER, "*": ATTENTION, "-": MLP, "E": EXPERTS}
_OLDER = {"mamba": MIXER, "attention": ATTENTION}


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as config.json lists them or by a letter each.

    Raises: ConfigError for a kind that is not supported
    """
    kinds = _stated_types(config)
    unknown = sorted(set(kinds) - {MIXER, ATTENTION, MLP, EXPERTS})
    if unknown:
        raise ConfigError(
            f"layers of the kind {unknown[0]} are not supported in Nemotron-H.",
            where="config.json: layers_block_type or hybrid_override_pattern",
            fix=f"use a checkpoint with layers of {MIXER}, {ATTENTION}, {MLP} and {EXPERTS} alone.",
        )
    return kinds


def _stated_types(config: Config) -> tuple[str, ...]:
    kinds = config.get("layers_block_type") or config.get("layer_types")
    if kinds:
        return tuple(_OLDER.get(kind, kind) for kind in kinds)
    pattern = config.get("hybrid_override_pattern")
    if pattern:
        return tuple(_LETTERS.get(letter, letter) for letter in pattern)
    return (MIXER, EXPERTS, ATTENTION, MLP)


def mixer_sizes(config: Config) -> Mamba2Sizes:
    """Return the sizes of a mixer. Time steps have a least value and no largest."""
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

    heads, head = int(config["mamba_num_heads"]), int(config["mamba_head_dim"])
    return Mamba2Sizes(
        heads=heads,
        head=head,
        groups=int(config["n_groups"]),
        state=int(config["ssm_state_size"]),
        conv=int(config["conv_kernel"]),
        norm_group=heads * head // int(config["n_groups"]),
        eps=float(config["layer_norm_epsilon"]),
        dt_limit=(float(config["time_step_min"]), float("inf")),
        has_bias=bool(config["use_bias"]),
        has_out_bias=bool(config["use_bias"]),
        has_conv_bias=bool(config["use_conv_bias"]),
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a state, keys and values, or nothing."""
    kinds = layer_types(config)
    inner = int(config["mamba_num_heads"]) * int(config["mamba_head_dim"])
    state = int(config["ssm_state_size"])
    channels = inner + 2 * int(config["n_groups"]) * state
    return CacheFacts(
        num_attention_layers=kinds.count(ATTENTION),
        num_state_layers=kinds.count(MIXER),
        conv_numbers=channels * (int(config["conv_kernel"]) - 1),
        state_numbers=inner * state,
    )


NEMOTRON_H = Value(
    summary="Nemotron-H",
    value=ModelFacts(
        positions="none",
        defaults={
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21504,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "n_routed_experts": 8,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "time_step_min": 0.001,
            "use_conv_bias": True,
            "use_bias": False,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": False,
        },
        cache=f"{__name__}:cache",
    ),
)
NEMOTRON_H_OMNI = Value(summary="Nemotron-H Omni", value=ModelFacts(media=("image", "audio")))
