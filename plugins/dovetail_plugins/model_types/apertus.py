"""Facts of Apertus: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

APERTUS = Value(
    summary="Apertus",
    value=ModelFacts(
        defaults={
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "hidden_act": "xielu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
        },
    ),
)
