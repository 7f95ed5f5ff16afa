"""Facts of MPT: unusual traits, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

MPT = Value(
    summary="MPT",
    value=ModelFacts(
        positions="alibi",
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 24,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "layer_norm_epsilon": 1e-05,
            "logit_scale": None,
            "no_bias": True,
            "tie_word_embeddings": True,
        },
    ),
)
