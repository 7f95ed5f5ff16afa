"""The families of tiny random checkpoints whose layers have states: convolutions, scans, averages,
the delta rule; by themselves or between attention layers."""

from __future__ import annotations

from typing import Any

from dovetail_testing.tiny.sizes import EXPERTS, LATENT, VOCAB_SIZE

_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
_INKLING: dict[str, Any] = {
    **EXPERTS,
    "head_dim": 8,
    "n_routed_experts": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 8,
    "sliding_window_size": 6,
    "d_rel": 4,
    "rel_extent": 11,
    "log_scaling_n_floor": 16,
}
_INKLING2: dict[str, Any] = {
    "route_scale": 2.0,
    "unpadded_vocab_size": VOCAB_SIZE,
    "n_layers_per_attn_res_block": 2,
    "qk_l2_clip_threshold": 2.0,
    "rel_l2_clip_threshold": 0.6,
    "mlp_gate_softcap": 1.0,
    "mlp_up_softcap": 1.5,
    "final_logit_softcapping": 3.0,
}
_NOT_KIMI = ("n_routed_experts", "q_lora_rank")

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "MambaForCausalLM": ("mamba", {"state_size": 4, "time_step_rank": 2}),
    "FalconMambaForCausalLM": ("falcon_mamba", {"state_size": 4, "time_step_rank": 2}),
    "Mamba2ForCausalLM": (
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "Lfm2ForCausalLM": (
        "lfm2",
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    ),
    "Lfm3ForCausalLM": (
        "lfm3",
        {
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 6,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
        },
    ),
    "Lfm2MoeForCausalLM": (
        "lfm2_moe",
        {**EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "BambaForCausalLM": ("bamba", {**_MAMBA2, "attn_layer_indices": [1]}),
    "GraniteMoeHybridForCausalLM": (
        "granitemoehybrid",
        {
            **_MAMBA2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            "shared_intermediate_size": 24,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "JambaForCausalLM": (
        "jamba",
        {
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 2,
        },
    ),
    "Qwen3NextForCausalLM": (
        "qwen3_next",
        {
            **EXPERTS,
            **_DELTA,
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "KimiLinearForCausalLM": (
        "kimi_linear",
        {
            **{name: size for name, size in LATENT.items() if name not in _NOT_KIMI},
            "num_local_experts": 8,
            "linear_num_heads": 4,
            "linear_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "LaraMiniForCausalLM": (
        "lara_mini",
        {
            **EXPERTS,
            **_DELTA,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 6,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
        },
    ),
    "BailingHybridForCausalLM": (
        "bailing_hybrid",
        {
            **{name: size for name, size in LATENT.items() if name not in _NOT_KIMI},
            "num_local_experts": 8,
            "head_dim": 8,
            "num_mtp_layers": 0,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "OlmoHybridForCausalLM": (
        "olmo_hybrid",
        {**_DELTA, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "Qwen3_5ForCausalLM": (
        "qwen3_5_text",
        {**_DELTA, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "Qwen3_5MoeForCausalLM": (
        "qwen3_5_moe_text",
        {
            **EXPERTS,
            **_DELTA,
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "InklingForCausalLM": (
        "inkling_text",
        {
            **_INKLING,
            "num_hidden_layers": 3,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_shared_experts": 2,
            "route_scale": 2.0,
            "logits_mup_width_multiplier": 2.0,
        },
    ),
    "Inkling2ForCausalLM": (
        "inkling2_text",
        {
            **_INKLING,
            **_INKLING2,
            "num_hidden_layers": 4,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
        },
    ),
    "Inkling2LoopForCausalLM": (
        "inkling2_loop_text",
        {
            **_INKLING,
            **_INKLING2,
            "num_hidden_layers": 6,
            "layer_types": [*("hybrid", "hybrid_sliding") * 3],
            "loop_layer_index_start": 2,
            "loop_layer_index_end": 6,
            "loop_num_passes": 3,
            "loop_gate_rank": 4,
        },
    ),
    "Qwen4ExpForCausalLM": (
        "qwen4_exp_text",
        {
            **EXPERTS,
            **_DELTA,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "hc_count": 2,
            "hc_lowrank": 6,
            "ple_layer_ids": [1, 3],
            "ple_embed_dim": 24,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 50,
            "make_ngram_vocab_size_divisible_by": 16,
            "split_ngram_parts": 5,
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 12,
            "indexer_compress_ratio": 4,
            "output_gate_type": "sigmoid",
        },
    ),
    "MiniMaxForCausalLM": (
        "minimax",
        {
            "num_local_experts": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_attn_alpha_factor": 1.5,
            "full_attn_beta_factor": 0.75,
            "mlp_alpha_factor": 0.5,
            "block_size": 8,
        },
    ),
    "FalconH1ForCausalLM": (
        "falcon_h1",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 2.0,
            "mlp_multipliers": [0.8, 1.3],
            "key_multiplier": 0.6,
            "attention_out_multiplier": 0.9,
            "attention_in_multiplier": 1.1,
            "ssm_multipliers": [0.8, 1.2, 0.7, 0.9, 1.1],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.5,
        },
    ),
    "NemotronHForCausalLM": (
        "nemotron_h",
        {
            "head_dim": 8,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
            **dict.fromkeys(("moe_intermediate_size", "moe_latent_size"), 16),
            "n_routed_experts": 4,
            "moe_shared_expert_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 2,
            "chunk_size": 8,
        },
    ),
    "ZambaForCausalLM": (
        "zamba",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 3,
        },
    ),
    "Zamba2ForCausalLM": (
        "zamba2",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "n_mamba_heads": 8,
            "chunk_size": 8,
            "num_mem_blocks": 2,
            **dict.fromkeys(("use_mem_rope", "use_shared_attention_adapter"), True),
            "adapter_rank": 4,
        },
    ),
    "ZayaForCausalLM": (
        "zaya",
        {
            "head_dim": 8,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "router_hidden_size": 12,
            "sliding_window": 6,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
            "num_hidden_layers": 3,
        },
    ),
    "xLSTMForCausalLM": ("xlstm", {"hidden_size": 128, "num_heads": 4}),
    "RwkvForCausalLM": (
        "rwkv",
        {"attention_hidden_size": 32, "rescale_every": 0},
    ),
    "RecurrentGemmaForCausalLM": (
        "recurrent_gemma",
        {"block_types": ["recurrent", "attention"], "attention_window_size": 6},
    ),
}
"""Architecture -> (model type, config fields in addition to the common ones)."""
