"""Facts of A.X K2: what a row caches, and config.json defaults."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.deepseek import indexed_latents

AXK2 = Value(
    summary="A.X K2",
    value=ModelFacts(
        cache=f"{indexed_latents.__module__}:{indexed_latents.__name__}",
        length_is_scaled=True,
        defaults={
            "vocab_size": 163840,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "n_shared_experts": 1,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "bos_token_id": 163691,
            "eos_token_id": 163691,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "kv_lora_rank": 128,
            "q_lora_rank": 384,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 16,
            "gated_norm_rank": 16,
        },
    ),
)
