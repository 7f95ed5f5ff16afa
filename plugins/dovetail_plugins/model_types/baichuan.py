"""Facts of Baichuan 1 and 2: unusual traits, and config.json defaults.

The configs of the 7B state max_position_embeddings; the 13B has ALiBi and does not.
"""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

BAICHUAN = Value(
    summary="Baichuan 1 and 2",
    value=ModelFacts(
        alibi_without="max_position_embeddings",
        defaults={
            "vocab_size": 64000,
            "hidden_act": "silu",
            "model_max_length": 4096,
            "rms_norm_eps": 1e-06,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
        },
    ),
)
