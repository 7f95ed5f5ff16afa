"""Facts of Bamba: which layers attend, what a row caches, config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types._hybrid import FULL, MAMBA2_DEFAULTS, MIXER, Config, mamba2_cache


def layer_types(config: Config) -> tuple[str, ...]:
    """Return each layer's kind: those whose numbers are listed attend."""
    attend = frozenset(config.get("attn_layer_indices") or ())
    return tuple(FULL if i in attend else MIXER for i in range(int(config["num_hidden_layers"])))


def cache(config: Config) -> CacheFacts:
    """Return what a row caches."""
    return mamba2_cache(config, layer_types(config))


BAMBA = Value(
    summary="Bamba",
    value=ModelFacts(
        defaults={
            **MAMBA2_DEFAULTS,
            "vocab_size": 128000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
        cache=f"{__name__}:cache",
    ),
)
