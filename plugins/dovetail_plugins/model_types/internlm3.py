"""Facts of InternLM3: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

INTERNLM3 = Value(
    summary="InternLM3",
    value=ModelFacts(
        attribute_map={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        defaults={
            "vocab_size": 128512,
            "hidden_size": 4096,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
)
