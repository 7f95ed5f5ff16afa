"""Facts of BERT: unusual traits, and config.json defaults."""

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
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    },
)

BERT = Value(summary="BERT", value=FACTS)
