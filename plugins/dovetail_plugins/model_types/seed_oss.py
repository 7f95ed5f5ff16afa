"""Facts of Seed-OSS: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

SEED_OSS = Value(
    summary="Seed-OSS",
    value=ModelFacts(
        defaults={
            "vocab_size": 155136,
            "hidden_size": 4096,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
        },
    ),
)
