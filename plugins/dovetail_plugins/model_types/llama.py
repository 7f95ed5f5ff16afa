"""Facts of Llama 1 to 3: config.json defaults."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-06,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
)

LLAMA = Value(summary="Llama 1 to 3", value=FACTS)
LLAMA_BIDIREC = Value(
    summary="Llama whose tokens see all others, for vectors",
    value=dataclasses.replace(
        FACTS,
        is_encoder=True,
        pooler="config.pooling",
        classes_pooler="config.pooling",
        defaults={**FACTS.defaults, "pooling": "avg", "temperature": 1.0},
    ),
)
