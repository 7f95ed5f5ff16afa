"""Facts of GPT-NeoX: config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

GPT_NEOX = Value(
    summary="GPT-NeoX and Pythia",
    value=ModelFacts(
        attribute_map={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        defaults={
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "hidden_act": "gelu",
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-05,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "use_parallel_residual": True,
        },
    ),
)
