"""Facts of Helium and dense ERNIE 4.5: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

HELIUM = Value(
    summary="Helium",
    value=ModelFacts(
        defaults={
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-08,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
)

ERNIE4_5 = Value(
    summary="ERNIE 4.5, dense",
    value=ModelFacts(
        defaults={
            "vocab_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": True,
            "use_bias": False,
        },
    ),
)
