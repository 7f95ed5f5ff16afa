"""Facts of GTE's encoders, under the name of their first code ("new") and that of transformers."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    length_is_scaled=True,
    is_encoder=True,
    pooler="cls",
    classes_pooler="cls",
    defaults={
        "vocab_size": 30528,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
        "rope_theta": 10000.0,
    },
)
LATER = dataclasses.replace(
    FACTS,
    defaults={
        "vocab_size": 250048,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
    },
)

NEW = Value(summary="GTE's encoder by its first code", value=FACTS)
GTE = Value(summary="GTE's encoder", value=LATER)
