"""Facts of DistilBERT: config.json's different names, and its defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="learned",
    is_encoder=True,
    pooler="cls",
    classes_pooler="cls",
    defaults={
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "activation": "gelu",
    },
    attribute_map={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
)

DISTILBERT = Value(summary="DistilBERT", value=FACTS)
