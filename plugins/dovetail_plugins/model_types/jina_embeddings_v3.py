"""Facts of Jina's embeddings v3."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import bert

FACTS = dataclasses.replace(
    bert.FACTS,
    positions="rotary",
    pooler="mean",
    defaults={
        **bert.FACTS.defaults,
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
)

JINA_EMBEDDINGS_V3 = Value(summary="Jina's embeddings v3", value=FACTS)
