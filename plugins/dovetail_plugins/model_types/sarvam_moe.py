"""Facts of Sarvam's mixtures: config.json defaults. transformers saves them under the class of
GLM-4.5."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

SARVAM_MOE = Value(
    summary="Sarvam (mixture of experts)",
    value=ModelFacts(
        runs_as="SarvamMoEForCausalLM",
        attribute_map={
            "n_routed_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
            "attention_bias": "use_qkv_bias",
        },
        defaults={
            "vocab_size": 262144,
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "num_hidden_layers": 19,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-06,
            "eos_token_id": 1,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "moe_intermediate_size": 1024,
            "num_experts_per_tok": 6,
            "n_shared_experts": 1,
            "n_routed_experts": 128,
            "routed_scaling_factor": 2.5,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "use_qk_norm": True,
        },
    ),
)
