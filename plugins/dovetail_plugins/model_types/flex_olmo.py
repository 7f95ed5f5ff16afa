"""Facts of FlexOlmo: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 100352,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06,
        "eos_token_id": 100257,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "num_experts_per_tok": 5,
        "num_experts": 7,
        "norm_topk_prob": False,
    },
)

FLEX_OLMO = Value(summary="FlexOlmo", value=FACTS)
