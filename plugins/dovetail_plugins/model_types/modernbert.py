"""Facts of ModernBERT: two rotations, and windows that reach to both sides."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    has_two_rotary_tables=True,
    window_has_two_sides=True,
    is_encoder=True,
    pooler="cls",
    classes_pooler="config.classifier_pooling",
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "local_attention": 128,
        "mlp_bias": False,
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    attribute_map={"sliding_window": "local_attention"},
)

MODERNBERT = Value(summary="ModernBERT", value=FACTS)
