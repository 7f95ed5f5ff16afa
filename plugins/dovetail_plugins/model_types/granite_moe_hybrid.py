"""Facts of Granite 4: which layers attend, what a row caches, config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import FULL, MAMBA2_DEFAULTS, MIXER, Config, mamba2_cache


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind as listed in config.json; without a list none attends."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if not kinds:
        return (MIXER,) * int(config["num_hidden_layers"])
    return tuple(FULL if kind in ("attention", FULL) else MIXER for kind in kinds)


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    return mamba2_cache(config, layer_types(config))


GRANITE_MOE_HYBRID = Value(
    summary="Granite 4",
    value=ModelFacts(
        defaults={
            **MAMBA2_DEFAULTS,
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "shared_intermediate_size": 1024,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
        cache=f"{__name__}:cache",
    ),
)
