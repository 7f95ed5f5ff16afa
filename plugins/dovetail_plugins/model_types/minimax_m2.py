"""Facts of MiniMax M2: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-06,
        "bos_token_id": 200034,
        "eos_token_id": 200020,
        "tie_word_embeddings": False,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
)

MINIMAX_M2 = Value(summary="MiniMax M2", value=FACTS)
