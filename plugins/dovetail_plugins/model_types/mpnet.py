"""Facts of MPNet: learned positions plus biases by relative position."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="learned",
    has_position_bias=True,
    is_encoder=True,
    pooler="mean",
    classes_pooler="cls",
    counts_from="pad_token_id",
    defaults={
        "vocab_size": 30527,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
        "relative_attention_num_buckets": 32,
        "pad_token_id": 1,
    },
)

MPNET = Value(summary="MPNet", value=FACTS)
