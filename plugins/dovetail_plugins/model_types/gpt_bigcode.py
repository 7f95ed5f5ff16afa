"""Facts of GPT-BigCode: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

GPT_BIGCODE = Value(
    summary="StarCoder 1 and SantaCoder (GPT-BigCode)",
    value=ModelFacts(
        positions="learned",
        defaults={
            "vocab_size": 50257,
            "layer_norm_epsilon": 1e-05,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "tie_word_embeddings": True,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "activation_function": "gelu_pytorch_tanh",
            "scale_attn_weights": True,
            "multi_query": True,
            "add_cross_attention": False,
        },
    ),
)
