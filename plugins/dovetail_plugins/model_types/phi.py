"""Facts of Phi-1, 1.5 and 2: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

PHI = Value(
    summary="Phi-1, 1.5 and 2",
    value=ModelFacts(
        defaults={
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "hidden_act": "gelu_new",
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "qk_layernorm": False,
        },
    ),
)
