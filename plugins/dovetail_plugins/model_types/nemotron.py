"""Facts of Nemotron: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

NEMOTRON = Value(
    summary="Nemotron-4 and Minitron",
    value=ModelFacts(
        defaults={
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 32,
            "num_attention_heads": 48,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "norm_eps": 1e-05,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
)
