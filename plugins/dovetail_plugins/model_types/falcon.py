"""Facts of Falcon: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FALCON = Value(
    summary="Falcon",
    value=ModelFacts(
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "num_ln_in_parallel_attn": None,
            "layer_norm_epsilon": 1e-05,
            "alibi": False,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "max_position_embeddings": 2048,
            "bos_token_id": 11,
            "eos_token_id": 11,
            "ffn_hidden_size": None,
            "activation": "gelu",
            "tie_word_embeddings": True,
        },
    ),
)
