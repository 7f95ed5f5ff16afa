"""Facts of dots.llm1: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "routed_scaling_factor": 1.0,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
)

DOTS1 = Value(summary="dots.llm1 (mixture of experts)", value=FACTS)
