"""Facts of RoBERTa and the families with its code."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

_DEFAULTS = {
    "vocab_size": 50265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
}
FACTS = ModelFacts(
    positions="learned",
    is_encoder=True,
    pooler="cls",
    classes_pooler="cls",
    counts_from="pad_token_id",
    defaults=_DEFAULTS,
)
LATER = dataclasses.replace(FACTS, defaults={**_DEFAULTS, "vocab_size": 30522})

ROBERTA = Value(summary="RoBERTa", value=FACTS)
XLM_ROBERTA = Value(summary="XLM-RoBERTa", value=LATER)
CAMEMBERT = Value(summary="CamemBERT", value=LATER)
