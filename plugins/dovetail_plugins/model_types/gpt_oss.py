"""Facts of gpt-oss: unusual traits, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

INPUTS_FIRST = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of the names of tensors that hold all experts' matrices as [experts, in, out]."""

FACTS = ModelFacts(
    has_sinks=True,
    quantized_is_readable=False,
    defaults={
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 150000.0,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
)

GPT_OSS = Value(summary="gpt-oss", value=FACTS)
