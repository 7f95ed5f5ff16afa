"""Facts of SmolLM3: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

SMOLLM3 = Value(
    summary="SmolLM3",
    value=ModelFacts(
        defaults={
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
        },
    ),
)
