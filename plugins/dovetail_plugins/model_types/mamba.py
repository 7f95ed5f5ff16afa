"""Mamba 1 and 2: the sizes of their mixers, and what a row caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba import MambaSizes
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

Config = Mapping[str, Any]
_COMMON = {
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "expand": 2,
    "use_bias": False,
    "use_conv_bias": True,
}


def mamba_sizes(config: Config) -> MambaSizes:
    """Return the sizes of a mixer of Mamba 1."""
    from dovetail_plugins.layers.mixers.mamba import MambaSizes

    rank, hidden = config.get("time_step_rank", "auto"), int(config["hidden_size"])
    return MambaSizes(
        inner=_inner(config),
        state=int(config["state_size"]),
        time_rank=-(-hidden // 16) if rank == "auto" else int(rank),
        conv=int(config["conv_kernel"]),
        has_bias=bool(config["use_bias"]),
        has_conv_bias=bool(config["use_conv_bias"]),
    )


def mamba2_sizes(config: Config) -> Mamba2Sizes:
    """Return the sizes of a mixer of Mamba 2."""
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

    heads, head = int(config["num_heads"]), int(config["head_dim"])
    low, high = config.get("time_step_limit") or (0.0, float("inf"))
    return Mamba2Sizes(
        heads=heads,
        head=head,
        groups=int(config["n_groups"]),
        state=int(config["state_size"]),
        conv=int(config["conv_kernel"]),
        norm_group=heads * head // int(config["n_groups"]),
        eps=float(config["layer_norm_epsilon"]),
        dt_limit=(float(low), float(high)),
        has_bias=bool(config["use_bias"]),
        has_out_bias=bool(config["use_bias"]),
        has_conv_bias=bool(config["use_conv_bias"]),
    )


def _inner(config: Config) -> int:
    return int(config.get("intermediate_size") or config["expand"] * config["hidden_size"])


def _mamba_cache(config: Config) -> CacheFacts:
    inner = _inner(config)
    return CacheFacts(
        num_attention_layers=0,
        num_state_layers=int(config["num_hidden_layers"]),
        conv_numbers=inner * (int(config["conv_kernel"]) - 1),
        state_numbers=inner * int(config["state_size"]),
    )


def _mamba2_cache(config: Config) -> CacheFacts:
    inner, state = int(config["num_heads"]) * int(config["head_dim"]), int(config["state_size"])
    channels = inner + 2 * int(config["n_groups"]) * state
    return CacheFacts(
        num_attention_layers=0,
        num_state_layers=int(config["num_hidden_layers"]),
        conv_numbers=channels * (int(config["conv_kernel"]) - 1),
        state_numbers=inner * state,
    )


# No attention: the number of heads has no meaning.
_MAMBA = ModelFacts(
    positions="none",
    defaults={
        **_COMMON,
        "state_size": 16,
        "num_attention_heads": 1,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    cache=f"{__name__}:_mamba_cache",
)
MAMBA = Value(summary="Mamba 1", value=_MAMBA)
FALCON_MAMBA = Value(summary="Falcon Mamba", value=_MAMBA)
MAMBA2 = Value(
    summary="Mamba 2",
    value=ModelFacts(
        positions="none",
        defaults={
            **_COMMON,
            "state_size": 128,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "tie_word_embeddings": False,
        },
        cache=f"{__name__}:_mamba2_cache",
    ),
)
