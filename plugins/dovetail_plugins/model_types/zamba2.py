"""Zamba 2: which layers call a shared block, the sizes of its mixers, and what a row caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import MIXER, Config, inner_size

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

HYBRID = "hybrid"
"""The kind of a layer that calls a shared block before its mixer."""
_OLDER = {"mamba": MIXER}
_USUAL = (MIXER, *(*(MIXER,) * 5, HYBRID) * 7, *(MIXER,) * 4, HYBRID, *(MIXER,) * 3, HYBRID)


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind."""
    return named_kinds(config.get("layers_block_type") or (*_USUAL, MIXER, MIXER))


def named_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return kinds of layers by their current names."""
    return tuple(_OLDER.get(kind, kind) for kind in kinds)


def mixer_sizes(config: Config) -> Mamba2Sizes:
    """Return the sizes of a mixer. Time steps have a least value and no largest."""
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

    inner, heads = inner_size(config), int(config["n_mamba_heads"])
    groups, has_bias = int(config["mamba_ngroups"]), bool(config["add_bias_linear"])
    return Mamba2Sizes(
        heads=heads,
        head=inner // heads,
        groups=groups,
        state=int(config["mamba_d_state"]),
        conv=int(config["mamba_d_conv"]),
        norm_group=inner // groups,
        eps=1e-5,
        dt_limit=(float(config["time_step_min"]), float("inf")),
        has_bias=has_bias,
        has_out_bias=has_bias,
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a state in each layer, keys and values if it calls a block."""
    kinds = layer_types(config)
    inner, state = inner_size(config), int(config["mamba_d_state"])
    channels = inner + 2 * int(config["mamba_ngroups"]) * state
    return CacheFacts(
        num_attention_layers=kinds.count(HYBRID),
        num_state_layers=len(kinds),
        conv_numbers=channels * (int(config["mamba_d_conv"]) - 1),
        state_numbers=inner * state,
    )


ZAMBA2 = Value(
    summary="Zamba 2",
    value=ModelFacts(
        defaults={
            "num_attention_heads": 32,
            "attention_head_dim": 160,
            "hidden_act": "gelu",
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "time_step_min": 0.001,
            "add_bias_linear": False,
            "num_mem_blocks": 1,
            "use_shared_attention_adapter": False,
            "adapter_rank": 128,
            "use_mem_rope": False,
            "use_long_context": False,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        attribute_map={"head_dim": "attention_head_dim"},
        cache=f"{__name__}:cache",
    ),
)
