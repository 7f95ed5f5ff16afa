"""Facts of Phi-3.5-MoE: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 6400,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "lm_head_bias": False,
        "num_experts_per_tok": 2,
        "num_local_experts": 16,
        "router_jitter_noise": 0.01,
    },
)

PHIMOE = Value(summary="Phi-3.5-MoE", value=FACTS)
