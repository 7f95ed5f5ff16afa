"""Facts of Cohere 1 and 2: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

COHERE = Value(
    summary="Command R (Cohere)",
    value=ModelFacts(
        defaults={
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-05,
            "bos_token_id": 5,
            "eos_token_id": 255001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "use_qk_norm": False,
            "logit_scale": 0.0625,
        },
    ),
)

COHERE2 = Value(
    summary="Command R7B and Command A (Cohere 2)",
    value=ModelFacts(
        defaults={
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-05,
            "bos_token_id": 5,
            "eos_token_id": 255001,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "sliding_window": 4096,
            "logit_scale": 0.0625,
        },
    ),
)
