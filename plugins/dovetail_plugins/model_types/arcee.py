"""Facts of Arcee AFM: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

ARCEE = Value(
    summary="Arcee AFM",
    value=ModelFacts(
        defaults={
            "vocab_size": 32000,
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
)
