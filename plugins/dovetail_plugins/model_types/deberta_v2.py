"""Facts of DeBERTa, version 2 and 3: positions are products with the states, not numbers."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="relative",
    is_encoder=True,
    pooler="cls",
    classes_pooler="cls",
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_biased_input": True,
        "pooler_hidden_act": "gelu",
    },
)

DEBERTA_V2 = Value(summary="DeBERTa v2 and v3", value=FACTS)
