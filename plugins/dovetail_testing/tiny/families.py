"""The families of tiny random checkpoints, with a config of each, far smaller than the real one."""

from __future__ import annotations

from typing import Any

from dovetail_testing.tiny.sizes import COMMON, EXPERTS, LATENT, VOCAB_SIZE
from dovetail_testing.tiny.states import FAMILIES as WITH_STATES

__all__ = ["COMMON", "FAMILIES", "OF_OWN_NAMES", "VOCAB_SIZE"]

_GROUPED: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}
_GRANITE: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.4,
}
_LATENT_TWICE = {**LATENT, "head_dim": 8, "num_hidden_layers": 4, "zero_expert_num": 3}
_ALIKE = {"num_key_value_heads": 4}
_SHARED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "final_logit_softcapping": 3.0,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **WITH_STATES,
    "LlamaForCausalLM": ("llama", {}),
    "MistralForCausalLM": ("mistral", {"sliding_window": 6, "head_dim": 8}),
    "Qwen2ForCausalLM": ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": True}),
    "Qwen3ForCausalLM": ("qwen3", {"head_dim": 16}),
    "Qwen2MoeForCausalLM": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 24, "mlp_only_layers": [0]},
    ),
    "Qwen3MoeForCausalLM": ("qwen3_moe", {**EXPERTS, "head_dim": 8, "norm_topk_prob": True}),
    "DeepseekV2ForCausalLM": ("deepseek_v2", {**LATENT, "topk_method": "group_limited_greedy"}),
    "DeepseekV3ForCausalLM": ("deepseek_v3", LATENT),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", LATENT),
    "HYV3ForCausalLM": (
        "hy_v3",
        {
            "head_dim": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "DeepseekV32ForCausalLM": (
        "deepseek_v32",
        {**LATENT, "index_topk": 128, "index_head_dim": 16, "index_n_heads": 2},
    ),
    "GlmMoeDsaForCausalLM": (
        "glm_moe_dsa",
        {
            **LATENT,
            "index_topk": 128,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "indexer_types": ["full", "shared"],
        },
    ),
    "AXK2ForCausalLM": (
        "axk2",
        {
            **LATENT,
            "index_topk": 128,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "gated_norm_rank": 4,
        },
    ),
    "HYV4ForCausalLM": (
        "hy_v4",
        {
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "index_topk": 128,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "hc_mult": 3,
            "swiglu_limit": 0.3,
        },
    ),
    "Dots3NoteForCausalLM": (
        "dots3_note_text",
        {
            **{k: v for k, v in LATENT.items() if k != "first_k_dense_replace"},
            "num_hidden_layers": 4,
            "layer_types": ["indexed_attention", *["sliding_attention"] * 2, "indexed_attention"],
            "head_dim": 16,
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 2,
            "swa_q_lora_rank": 12,
            "swa_kv_lora_rank": 32,
            "swa_head_dim": 20,
            "swa_qk_nope_head_dim": 14,
            "swa_v_head_dim": 8,
            "sliding_window": 10,
            "shared_experts_intermediate_size": 12,
            "index_topk": 8,
            "index_head_dim": 16,
            "index_n_heads": 8,
        },
    ),
    "DeepseekV4ForCausalLM": (
        "deepseek_v4",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "partial_rotary_factor": 0.5,
            "q_lora_rank": 24,
            "sliding_window": 10,
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
            ],
            "compress_rates": {
                "compressed_sparse_attention": 2,
                "heavily_compressed_attention": 4,
            },
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "mlp_layer_types": ["hash_moe", "moe", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "index_n_heads": 8,
            "index_head_dim": 16,
            "index_topk": 3,
            "o_groups": 2,
            "o_lora_rank": 6,
            "hc_mult": 3,
            "hc_sinkhorn_iters": 4,
            "swiglu_limit": 0.3,
        },
    ),
    "LongcatFlashForCausalLM": ("longcat_flash", _LATENT_TWICE),
    "MixtralForCausalLM": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "GptOssForCausalLM": (
        "gpt_oss",
        {
            "head_dim": 8,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 4,
            "swiglu_limit": 0.5,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "Glm4MoeForCausalLM": (
        "glm4_moe",
        {**_GROUPED, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5},
    ),
    "Llama4ForCausalLM": (
        "llama4_text",
        {
            "head_dim": 8,
            "intermediate_size_mlp": 40,
            "intermediate_size": 24,
            "num_local_experts": 4,
            "attention_chunk_size": 6,
            "no_rope_layers": [1, 0],
            "interleave_moe_layer_step": 2,
            "floor_scale": 4,
            "attn_scale": 0.5,
        },
    ),
    "MiniMaxM2ForCausalLM": (
        "minimax_m2",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    ),
    "MiniMaxM3VLForCausalLM": (
        "minimax_m3_vl_text",
        {
            "head_dim": 16,
            "intermediate_size": 24,
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "swiglu_limit": 0.5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
            },
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 4,
            "index_topk_blocks": 32,
        },
    ),
    "OlmoeForCausalLM": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "FlexOlmoForCausalLM": ("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    "GraniteMoeForCausalLM": ("granitemoe", {**_GRANITE, "attention_bias": True}),
    "GraniteMoeSharedForCausalLM": (
        "granitemoeshared",
        {**_GRANITE, "shared_intermediate_size": 24, "tie_word_embeddings": True},
    ),
    "PhimoeForCausalLM": (
        "phimoe",
        {
            "num_local_experts": 4,
            "attention_bias": True,
            "lm_head_bias": True,
            "router_jitter_noise": 0.3,
        },
    ),
    "Ernie4_5_MoeForCausalLM": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 16,
            "moe_num_shared_experts": 2,
            "use_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "HunYuanMoEV1ForCausalLM": (
        "hunyuan_v1_moe",
        {"num_experts": 4, "moe_topk": 2, "head_dim": 8, "intermediate_size": 24},
    ),
    "Dots1ForCausalLM": (
        "dots1",
        {**_GROUPED, "sliding_window": 6, "max_window_layers": 1, "norm_topk_prob": True},
    ),
    "GemmaForCausalLM": ("gemma", {"head_dim": 16}),
    "Gemma2ForCausalLM": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "Gemma3ForCausalLM": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "Gemma3nForCausalLM": (
        "gemma3n_text",
        {
            **_SHARED,
            "intermediate_size": [48, 40, 48, 56],
            "activation_sparsity_pattern": [0.8, 0.0, 0.0, 0.0],
            "vocab_size_per_layer_input": VOCAB_SIZE - 20,
            "laurel_rank": 8,
        },
    ),
    "Gemma4ForCausalLM": (
        "gemma4_text",
        {**_SHARED, "global_head_dim": 32, "use_double_wide_mlp": True},
    ),
    "Phi3ForCausalLM": ("phi3", {"original_max_position_embeddings": 64}),
    "OPTForCausalLM": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "GPT2LMHeadModel": (
        "gpt2",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    ),
    "FalconForCausalLM": (
        "falcon",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "new_decoder_architecture": False,
            "multi_query": True,
        },
    ),
    "HyperCLOVAXForCausalLM": (
        "hyperclovax",
        {
            "logits_scaling": 0.5,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
        },
    ),
    "XGLMForCausalLM": (
        "xglm",
        {"d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 48} | _ALIKE,
    ),
    "BloomForCausalLM": ("bloom", {"hidden_size": 64, "n_head": 4, "n_layer": 2}),
    "MptForCausalLM": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}),
    "GPTNeoForCausalLM": (
        "gpt_neo",
        {
            **_ALIKE,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 6,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "GPTJForCausalLM": (
        "gptj",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4},
    ),
    "CodeGenForCausalLM": (
        "codegen",
        {"n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 128, "rotary_dim": 2},
    ),
    "OlmoForCausalLM": ("olmo", {"clip_qkv": 0.5}),
    "Olmo2ForCausalLM": ("olmo2", {}),
    "Olmo3ForCausalLM": (
        "olmo3",
        {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "GraniteForCausalLM": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "CohereForCausalLM": ("cohere", {"logit_scale": 0.5, "use_qk_norm": True}),
    "Cohere2ForCausalLM": (
        "cohere2",
        {
            "logit_scale": 0.5,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "DoryForCausalLM": (
        "dory",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "n_input_layers": 1,
            "n_output_layers": 1,
            "sliding_window": 6,
            "initializer_range": 0.5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "NemotronForCausalLM": ("nemotron", {}),
    "PersimmonForCausalLM": ("persimmon", {}),
    "Jais2ForCausalLM": ("jais2", {}),
    "Exaone4ForCausalLM": (
        "exaone4",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "SmolLM3ForCausalLM": ("smollm3", {"no_rope_layers": [1, 0]}),
    "GlmForCausalLM": ("glm", {"head_dim": 16}),
    "Glm4ForCausalLM": ("glm4", {"head_dim": 16}),
    "GPTNeoXForCausalLM": ("gpt_neox", {"num_key_value_heads": 4, "rotary_pct": 0.5}),
    "GPTBigCodeForCausalLM": (
        "gpt_bigcode",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48},
    ),
    "Starcoder2ForCausalLM": ("starcoder2", {"sliding_window": 6}),
    "PhiForCausalLM": ("phi", {}),
    "StableLmForCausalLM": ("stablelm", {}),
    "SeedOssForCausalLM": ("seed_oss", {"head_dim": 16}),
    "ArceeForCausalLM": ("arcee", {}),
    "HeliumForCausalLM": ("helium", {"head_dim": 8}),
    "Ernie4_5ForCausalLM": ("ernie4_5", {"head_dim": 16}),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense", {"head_dim": 16}),
    "ApertusForCausalLM": ("apertus", {}),
}
"""Architecture -> (model type, config fields in addition to the common ones)."""
OF_OWN_NAMES = {"gpt2", "bloom", "falcon", "mpt", "gptj", "codegen"}
"""Types whose configs have different names for the common sizes, or lack some."""
