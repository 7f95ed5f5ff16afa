"""Facts of OLMoE: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "eos_token_id": 50279,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "norm_topk_prob": False,
    },
)

OLMOE = Value(summary="OLMoE", value=FACTS)
