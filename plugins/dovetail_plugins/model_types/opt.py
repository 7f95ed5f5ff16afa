"""Facts of OPT: unusual traits, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="learned",
    output_size="word_embed_proj_dim",
    defaults={
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
)

OPT = Value(summary="OPT", value=FACTS)
