"""Facts of Qwen3-Next and Qwen3.5: the kinds of layers, the sizes of gated delta layers, what a row
caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

Config = Mapping[str, Any]
LINEAR = "linear_attention"
_COMMON: dict[str, Any] = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as config.json lists them or by the interval of those that
    attend."""
    kinds = config.get("layer_types")
    if kinds:
        return tuple(kinds)
    every = int(config.get("full_attention_interval", 4))
    count = int(config["num_hidden_layers"])
    return tuple(LINEAR if (i + 1) % every else "full_attention" for i in range(count))


def delta_sizes(config: Config) -> DeltaSizes:
    """Return the sizes of a gated delta layer."""
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

    return DeltaSizes(
        key_heads=int(config["linear_num_key_heads"]),
        value_heads=int(config["linear_num_value_heads"]),
        key_size=int(config["linear_key_head_dim"]),
        value_size=int(config["linear_value_head_dim"]),
        conv=int(config["linear_conv_kernel_dim"]),
        act=config["hidden_act"],
        eps=float(config["rms_norm_eps"]),
        is_tiled=bool(config.get("linear_heads_are_tiled")),
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    return delta_cache(layer_types(config), config)


def delta_cache(kinds: Sequence[str], config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, or the last inputs of a convolution and a matrix
    for each value head."""
    key_size, value_heads = (
        int(config["linear_key_head_dim"]),
        int(config["linear_num_value_heads"]),
    )
    values = value_heads * int(config["linear_value_head_dim"])
    channels = 2 * int(config["linear_num_key_heads"]) * key_size + values
    return CacheFacts(
        num_attention_layers=len(kinds) - kinds.count(LINEAR),
        num_state_layers=kinds.count(LINEAR),
        conv_numbers=channels * (int(config["linear_conv_kernel_dim"]) - 1),
        state_numbers=values * key_size,
    )


QWEN3_NEXT = Value(
    summary="Qwen3-Next",
    value=ModelFacts(
        defaults={
            **_COMMON,
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 10,
            "num_experts": 512,
            "norm_topk_prob": True,
        },
        cache=f"{__name__}:cache",
    ),
)
QWEN3_5 = Value(
    summary="the text part of Qwen3.5",
    value=ModelFacts(
        defaults={
            **_COMMON,
            "vocab_size": 248320,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 32,
            "num_key_value_heads": 4,
        },
        cache=f"{__name__}:cache",
    ),
)
QWEN3_5_MOE = Value(
    summary="the text part of Qwen3.5 with experts",
    value=ModelFacts(
        defaults={
            **_COMMON,
            "vocab_size": 248320,
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts_per_tok": 8,
            "num_experts": 256,
        },
        cache=f"{__name__}:cache",
    ),
)
