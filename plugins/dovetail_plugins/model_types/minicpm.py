"""Facts of MiniCPM 1, 2 and 4: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

MINICPM = Value(
    summary="MiniCPM 1, 2 and 4",
    value=ModelFacts(
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
            "tie_word_embeddings": True,
            "scale_emb": 1,
            "dim_model_base": 1,
            "scale_depth": 1,
        },
    ),
)
