"""Facts of Hunyuan 3 (Hy3): config.json defaults, under GLM-4.5's names."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

HY_V3 = Value(
    summary="Hunyuan 3 (mixture of experts)",
    value=ModelFacts(
        attribute_map={
            "n_routed_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
            "routed_scaling_factor": "router_scaling_factor",
        },
        defaults={
            "vocab_size": 120832,
            "hidden_size": 4096,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "rope_theta": 11158840.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "moe_intermediate_size": 1536,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "num_experts": 192,
            "router_scaling_factor": 2.826,
            "norm_topk_prob": True,
        },
    ),
)
