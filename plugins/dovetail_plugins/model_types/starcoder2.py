"""Facts of StarCoder 2: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

STARCODER2 = Value(
    summary="StarCoder 2",
    value=ModelFacts(
        defaults={
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-05,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "tie_word_embeddings": True,
            "use_bias": True,
        },
    ),
)
