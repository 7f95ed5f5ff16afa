"""Facts of Jamba: which layers attend and have experts, what a row caches, config.json defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import FULL, MIXER, Config, cache_facts, inner_size

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba import MambaSizes


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: one of a period attends."""
    period, offset = int(config["attn_layer_period"]), int(config["attn_layer_offset"])
    count = int(config["num_hidden_layers"])
    return tuple(FULL if i % period == offset else MIXER for i in range(count))


def has_experts(config: Config, layer: int) -> bool:
    """Return whether a layer's feed-forward part is a mixture: one of a period is, if there is more
    than one expert."""
    period, offset = int(config["expert_layer_period"]), int(config["expert_layer_offset"])
    return int(config["num_experts"]) > 1 and layer % period == offset


def mixer_sizes(config: Config) -> MambaSizes:
    """Return the sizes of a mixer."""
    from dovetail_plugins.layers.mixers.mamba import MambaSizes

    rank, hidden = config["mamba_dt_rank"], int(config["hidden_size"])
    return MambaSizes(
        inner=inner_size(config),
        state=int(config["mamba_d_state"]),
        time_rank=-(-hidden // 16) if rank == "auto" else int(rank),
        conv=int(config["mamba_d_conv"]),
        has_bias=bool(config["mamba_proj_bias"]),
        has_conv_bias=bool(config["mamba_conv_bias"]),
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    inner = inner_size(config)
    numbers = inner * int(config["mamba_d_state"])
    return cache_facts(config, layer_types(config), channels=inner, state_numbers=numbers)


JAMBA = Value(
    summary="Jamba",
    value=ModelFacts(
        positions="none",
        defaults={
            "vocab_size": 65536,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 2,
            "num_experts": 16,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
        },
        cache=f"{__name__}:cache",
    ),
)
