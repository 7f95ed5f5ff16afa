"""Facts of Kimi Linear: the kinds of layers, the sizes of delta layers, what a row caches, and
config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.qwen3_next import LINEAR

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.delta import DeltaSizes

Config = Mapping[str, Any]
OWN = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
"""Sizes of delta layers, and their names in `linear_attn_config` of the released config.json."""
OWN_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""Usual names of config.json -> the type's own."""


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: as listed in `layer_types`, or from the attention layers in
    `linear_attn_config` (counted from one), or every fourth after the first attends."""
    count = int(config["num_hidden_layers"])
    if config.get("layer_types"):
        return tuple(config["layer_types"])
    listed = (config.get("linear_attn_config") or {}).get("full_attn_layers")
    full = {i for i in range(4, count, 4)} if listed is None else {int(i) - 1 for i in listed}
    return tuple("full_attention" if i in full else LINEAR for i in range(count))


def linear_size(config: Config, name: str) -> int:
    """Return one of the sizes in OWN."""
    released: Config = config.get("linear_attn_config") or {}
    return int(released.get(OWN[name], config[name]))


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


def delta_cache(
    config: Config, kinds: Sequence[str], *, heads: int, size: int, conv: int
) -> CacheFacts:
    """Return what a row caches if delta layers have `heads` heads of one size."""
    return CacheFacts(
        num_attention_layers=len(kinds) - kinds.count(LINEAR),
        latent_size=int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"]),
        num_state_layers=kinds.count(LINEAR),
        conv_numbers=3 * heads * size * (conv - 1),
        state_numbers=heads * size * size,
    )


KIMI_LINEAR = Value(
    summary="Kimi Linear",
    value=ModelFacts(
        positions="none",
        attribute_map=OWN_NAMES,
        defaults={
            "vocab_size": 163840,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "moe_intermediate_size": 1024,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_act": "silu",
            "model_max_length": 1048576,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 163584,
            "eos_token_id": 163586,
            "pad_token_id": 163839,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_experts": 256,
            "num_shared_experts": 1,
            "num_experts_per_token": 8,
            "moe_renormalize": True,
            "num_expert_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.446,
            "first_k_dense_replace": 1,
            "linear_head_dim": 128,
            "linear_num_heads": 32,
            "linear_conv_kernel_dim": 4,
        },
        cache=f"{__name__}:cache",
    ),
)
