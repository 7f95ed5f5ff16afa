"""Facts of Phi-3 and Phi-4: config.json defaults."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    defaults={
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
)

MULTIMODAL = dataclasses.replace(
    FACTS,
    defaults={
        **FACTS.defaults,
        "vocab_size": 200064,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "bos_token_id": 199999,
        "eos_token_id": [199999, 200020],
    },
    media=("image", "audio"),
    media_adapters={"image": "vision-lora", "audio": "speech-lora"},
    media_apart=True,  # sound combined with images goes through other layers
)

PHI3 = Value(summary="Phi-3 and Phi-4", value=FACTS)
PHI4_MULTIMODAL = Value(summary="Phi-4-multimodal", value=MULTIMODAL)
