"""Facts of GPT-2: unusual traits, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="learned",
    stores_inputs_first=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05,
        "scale_attn_weights": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": True,
    },
)

GPT2 = Value(summary="GPT-2", value=FACTS)
GPT_SW3 = Value(summary="GPT-SW3, which is GPT-2 by another name", value=FACTS)
