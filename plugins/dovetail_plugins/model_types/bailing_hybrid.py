"""Facts of Ling 3 (Bailing Hybrid): the kinds of layers, the sizes of delta layers, what a row
caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.kimi_linear import OWN_NAMES, delta_cache
from dovetail_plugins.model_types.qwen3_next import LINEAR

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

Config = Mapping[str, Any]
OWN = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_attention_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
"""Sizes of delta layers, and their names in the released config.json."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as config.json lists them, or the last of every group attends."""
    if config.get("layer_types"):
        return tuple(config["layer_types"])
    group, count = int(config["layer_group_size"]), int(config["num_hidden_layers"])
    return tuple(LINEAR if (i + 1) % group else "full_attention" for i in range(count))


def linear_size(config: Config, name: str) -> int:
    """Return a size of the delta layers. A config.json saved again by transformers has its own name
    for it, and `head_dim` is then the rotated part of attention heads."""
    stated = config.get(name)
    return int(config[OWN[name]] if stated is None else stated)


def delta_sizes(config: Config) -> DeltaSizes:
    """Return the sizes of a delta layer."""
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

    heads, size = (linear_size(config, name) for name in ("linear_num_heads", "linear_head_dim"))
    return DeltaSizes(
        key_heads=heads,
        value_heads=heads,
        key_size=size,
        value_size=size,
        conv=linear_size(config, "linear_conv_kernel_dim"),
        act=config["hidden_act"],
        eps=float(config["rms_norm_eps"]),
        least_log=float(config["kda_lower_bound"]) if config["kda_safe_gate"] else 0.0,
    )


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: a latent, or the last inputs of a convolution and a matrix for each
    head."""
    return delta_cache(
        config,
        layer_types(config),
        heads=linear_size(config, "linear_num_heads"),
        size=linear_size(config, "linear_head_dim"),
        conv=linear_size(config, "linear_conv_kernel_dim"),
    )


BAILING_HYBRID = Value(
    summary="Ling 3 (Bailing Hybrid)",
    value=ModelFacts(
        attribute_map={**OWN_NAMES, "num_nextn_predict_layers": "num_mtp_layers"},
        length_is_scaled=True,
        defaults={
            "vocab_size": 157184,
            "hidden_size": 2560,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 42,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "n_routed_experts": 512,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "n_group": 8,
            "topk_group": 4,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 2,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "pad_token_id": 156892,
            "eos_token_id": 156895,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "rope_theta": 6000000.0,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "layer_group_size": 6,
            "kda_safe_gate": True,
            "kda_lower_bound": -5.0,
        },
        cache=f"{__name__}:cache",
    ),
)
