"""Falcon-H1: the sizes of its mixers, what a row caches, config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

Config = Mapping[str, Any]


def inner_size(config: Config) -> int:
    """Return the channels of all heads of a mixer."""
    size = config["mamba_d_ssm"]
    return int(config["mamba_expand"] * config["hidden_size"] if size is None else size)


def mixer_sizes(config: Config) -> Mamba2Sizes:
    """Return the sizes of a mixer."""
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

    inner, heads, groups = inner_size(config), config["mamba_n_heads"], config["mamba_n_groups"]
    low, high = config.get("time_step_limit") or (0.0, float("inf"))
    return Mamba2Sizes(
        heads=int(heads),
        head=inner // int(heads),
        groups=int(groups),
        state=int(config["mamba_d_state"]),
        conv=int(config["mamba_d_conv"]),
        norm_group=inner // int(groups) if config["mamba_rms_norm"] else 0,
        gate_first=not config["mamba_norm_before_gate"],
        eps=float(config["rms_norm_eps"]),
        dt_limit=(float(low), float(high)),
        has_bias=bool(config["mamba_proj_bias"]),
        has_out_bias=bool(config["projectors_bias"]),
        has_conv_bias=bool(config["mamba_conv_bias"]),
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: in each layer, keys and values and a state."""
    inner, state, layers = inner_size(config), config["mamba_d_state"], config["num_hidden_layers"]
    channels = inner + 2 * int(config["mamba_n_groups"]) * int(state)
    return CacheFacts(
        num_attention_layers=int(layers),
        num_state_layers=int(layers),
        conv_numbers=channels * (int(config["mamba_d_conv"]) - 1),
        state_numbers=inner * int(state),
    )


FALCON_H1 = Value(
    summary="Falcon-H1",
    value=ModelFacts(
        defaults={
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "mamba_d_ssm": 1024,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "mamba_norm_before_gate": True,
            "mamba_rms_norm": False,
            "projectors_bias": False,
            "lm_head_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "key_multiplier": 1.0,
            "attention_out_multiplier": 1.0,
            "attention_in_multiplier": 1.0,
            "ssm_in_multiplier": 1.0,
            "ssm_out_multiplier": 1.0,
        },
        cache=f"{__name__}:cache",
    ),
)
