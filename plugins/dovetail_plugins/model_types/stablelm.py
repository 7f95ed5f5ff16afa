"""Facts of StableLM: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

STABLELM = Value(
    summary="StableLM",
    value=ModelFacts(
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-05,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "tie_word_embeddings": False,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
        },
    ),
)
