"""Facts of OLMo 1, 2 and 3: config.json defaults."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

_COMMON: dict[str, Any] = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "eos_token_id": 50279,
    "tie_word_embeddings": False,
    "attention_bias": False,
}

OLMO = Value(summary="OLMo", value=ModelFacts(defaults=_COMMON))

OLMO2 = Value(
    summary="OLMo 2",
    value=ModelFacts(defaults={**_COMMON, "rms_norm_eps": 1e-05}),
)

OLMO3 = Value(
    summary="OLMo 3",
    value=ModelFacts(
        length_is_scaled=True,
        has_two_rotary_tables=True,
        defaults={**_COMMON, "rms_norm_eps": 1e-05, "sliding_window": 4096},
    ),
)
