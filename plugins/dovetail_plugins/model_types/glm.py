"""Facts of GLM-4 and GLM-4-0414: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

GLM = Value(
    summary="GLM-4",
    value=ModelFacts(
        defaults={
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1.5625e-07,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
    ),
)

GLM4 = Value(
    summary="GLM-4-0414",
    value=ModelFacts(
        defaults={
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1.5625e-07,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
    ),
)
