"""Zamba: which layers call the shared block, the sizes of its mixers, and what a row caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import MIXER, Config, inner_size
from dovetail_plugins.model_types.zamba2 import HYBRID, named_kinds

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba import MambaSizes


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: as listed, or the third calls the block and then one of a
    period."""
    if config.get("layers_block_type"):
        return named_kinds(config["layers_block_type"])
    period, offset = int(config["attn_layer_period"]), int(config["attn_layer_offset"])
    later = range(int(config["num_hidden_layers"]) - 3)
    return (MIXER, MIXER, HYBRID, *(HYBRID if i % period == offset else MIXER for i in later))


def mixer_sizes(config: Config) -> MambaSizes:
    """Return the sizes of a mixer of `n_mamba_heads` heads."""
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
    """Return what a row caches: a state in each layer, keys and values if it calls the block."""
    kinds, inner = layer_types(config), inner_size(config)
    return CacheFacts(
        num_attention_layers=kinds.count(HYBRID),
        num_state_layers=len(kinds),
        conv_numbers=inner * (int(config["mamba_d_conv"]) - 1),
        state_numbers=inner * int(config["mamba_d_state"]),
    )


ZAMBA = Value(
    summary="Zamba",
    value=ModelFacts(
        positions="none",
        defaults={
            "vocab_size": 32000,
            "hidden_size": 3712,
            "intermediate_size": 14848,
            "num_hidden_layers": 76,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "attention_head_dim": 464,
            "hidden_act": "gelu",
            "hidden_mamba_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": True,
            "n_mamba_heads": 2,
            "attn_layer_period": 6,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "num_mem_blocks": 1,
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
        },
        attribute_map={"head_dim": "attention_head_dim"},
        cache=f"{__name__}:cache",
    ),
)
