"""Facts of Bloom: unusual traits, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

BLOOM = Value(
    summary="Bloom",
    value=ModelFacts(
        positions="alibi",
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "layer_norm_epsilon": 1e-05,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "apply_residual_connection_post_layernorm": False,
            "tie_word_embeddings": True,
        },
    ),
)
