"""Facts of OLMo Hybrid: the kinds of layers, the sizes of gated delta layers, what a row caches,
and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.qwen3_next import LINEAR, delta_cache

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

Config = Mapping[str, Any]
NORM_EPS = 1e-5
"""For the norms after the delta rule; no config.json states it."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind as listed in config.json; else every fourth attends, or the last if
    there is no fourth."""
    if config.get("layer_types"):
        return tuple(config["layer_types"])
    count = int(config["num_hidden_layers"])
    kinds = [LINEAR if (i + 1) % 4 else "full_attention" for i in range(count)]
    if "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    return tuple(kinds)


def filled(config: Config) -> dict[str, Any]:
    """Return the config with the sizes of delta layers that it leaves out."""
    heads = int(config["num_attention_heads"])
    key_heads = int(config.get("linear_num_key_heads") or heads)
    key_size = config.get("linear_key_head_dim") or int(0.75 * config["hidden_size"] / key_heads)
    return {
        **config,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": int(config.get("linear_num_value_heads") or heads),
        "linear_key_head_dim": int(key_size),
        "linear_value_head_dim": int(config.get("linear_value_head_dim") or 2 * int(key_size)),
    }


def delta_sizes(config: Config) -> DeltaSizes:
    """Return the sizes of a gated delta layer. With negative eigenvalues, a token's update is
    scaled by up to two, which can flip its key's value."""
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

    own = filled(config)
    return DeltaSizes(
        key_heads=own["linear_num_key_heads"],
        value_heads=own["linear_num_value_heads"],
        key_size=own["linear_key_head_dim"],
        value_size=own["linear_value_head_dim"],
        conv=int(own["linear_conv_kernel_dim"]),
        act=own["hidden_act"],
        eps=NORM_EPS,
        beta_scale=2.0 if own["linear_allow_neg_eigval"] else 1.0,
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    return delta_cache(layer_types(config), filled(config))


OLMO_HYBRID = Value(
    summary="OLMo Hybrid",
    value=ModelFacts(
        defaults={
            "vocab_size": 100352,
            "hidden_size": 3840,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 30,
            "hidden_act": "silu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-6,
            "eos_token_id": 100257,
            "pad_token_id": 100277,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "linear_conv_kernel_dim": 4,
            "linear_allow_neg_eigval": True,
        },
        cache=f"{__name__}:cache",
    ),
)
