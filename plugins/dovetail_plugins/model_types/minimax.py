"""Facts of MiniMax-Text-01 and MiniMax-M1: the kinds of layers, weights of branches, what a row
caches, and config.json defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

Config = Mapping[str, Any]
LINEAR, FULL = "linear_attention", "full_attention"


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind, as config.json lists them, by name or by number; else every other
    one attends."""
    if config.get("layer_types"):
        return tuple(config["layer_types"])
    if config.get("attn_type_list"):
        return tuple(FULL if number else LINEAR for number in config["attn_type_list"])
    return tuple(LINEAR if i % 2 else FULL for i in range(int(config["num_hidden_layers"])))


def head_size(config: Config) -> int:
    """Return the size of a head."""
    own = config.get("head_dim")
    return int(own or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches: keys and values, or a matrix for each head."""
    kinds = layer_types(config)
    return CacheFacts(
        num_attention_layers=len(kinds) - kinds.count(LINEAR),
        num_state_layers=kinds.count(LINEAR),
        state_numbers=int(config["num_attention_heads"]) * head_size(config) ** 2,
    )


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
_WEIGHTS = {
    f"{kind}_{weight}_factor": f"layernorm_{own}_{weight}"
    for kind, own in (
        ("full_attn", "full_attention"),
        ("linear_attn", "linear_attention"),
        ("mlp", "mlp"),
    )
    for weight in ("alpha", "beta")
}
"""The first checkpoints' names of the weights of branches."""

MINIMAX = Value(
    summary="MiniMax-Text-01 and MiniMax-M1",
    value=ModelFacts(
        defaults={
            **_DEFAULTS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **dict.fromkeys(_WEIGHTS, 1),
        },
        cache=f"{__name__}:cache",
    ),
)
MINIMAX_TEXT_01 = Value(
    summary="MiniMax-Text-01 and MiniMax-M1 by their first names",
    value=ModelFacts(
        defaults={
            **_DEFAULTS,
            **dict.fromkeys(_WEIGHTS.values(), 1.0),
        },
        attribute_map=_WEIGHTS,
        cache=f"{__name__}:cache",
    ),
)
