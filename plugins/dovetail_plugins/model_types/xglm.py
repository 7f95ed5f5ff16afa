"""Facts of XGLM: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

XGLM = Value(
    summary="XGLM",
    value=ModelFacts(
        positions="sinusoidal",
        attribute_map={
            "num_attention_heads": "attention_heads",
            "hidden_size": "d_model",
            "num_hidden_layers": "num_layers",
        },
        defaults={
            "vocab_size": 256008,
            "max_position_embeddings": 2048,
            "d_model": 1024,
            "ffn_dim": 4096,
            "num_layers": 24,
            "attention_heads": 16,
            "activation_function": "gelu",
            "scale_embedding": True,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "tie_word_embeddings": True,
        },
    ),
)
