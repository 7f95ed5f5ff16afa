"""Facts of NomicBERT, whose config.json is spelled as GPT-2's or as BERT's."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import bert

FACTS = ModelFacts(
    is_encoder=True,
    pooler="mean",
    classes_pooler="cls",
    defaults={
        **bert.FACTS.defaults,
        "vocab_size": 30528,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
    },
    attribute_map={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
        "rope_theta": "rotary_emb_base",
    },
)

NOMIC_BERT = Value(summary="NomicBERT", value=FACTS)
