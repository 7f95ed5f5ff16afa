"""GGUF families of 2025 and 2026 that tests write: cases, tiny configs, names.

The tables extend those of `gguf_cases` and `gguf_files`, which say what each has. What converters
change is in `gguf_recent_changes`, what settings they write in `gguf_recent_settings`.
"""

from __future__ import annotations

from typing import Any

WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
DELTA = {"linear_num_value_heads": 6}
WIDE_DELTA = {
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 32,
    "linear_key_head_dim": 32,
}
GEMMA4_MOE = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
}
MAMBA_AND_MOE = ["linear_attention", "moe", "full_attention", "moe"]
NEMOTRON_WIDE = {
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 256,
    "mamba_head_dim": 64,
}
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LATENT = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "q_lora_rank": 256,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "head_dim": 16,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen35": ("Qwen3_5ForCausalLM", DELTA, {**WIDE, **WIDE_DELTA}),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", DELTA, {**WIDE, **EXPERTS, **WIDE_DELTA}),
    "minimax-m2": ("MiniMaxM2ForCausalLM", {}, WIDE),
    "lfm2moe": ("Lfm2MoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "nemotron_h_moe": (
        "NemotronHForCausalLM",
        {"layers_block_type": MAMBA_AND_MOE},
        {**WIDE, **NEMOTRON_WIDE, "moe_latent_size": 256},
    ),
    "nemotron_h_moe-plain": (
        "NemotronHForCausalLM",
        {"layers_block_type": MAMBA_AND_MOE, "moe_latent_size": None},
        {**WIDE, **NEMOTRON_WIDE},
    ),
    "mistral3": ("MistralForCausalLM", {"sliding_window": None}, WIDE),
    "ministral3": (
        "Ministral3ForCausalLM",
        {"rope_parameters": MINISTRAL_ROPE},
        {**WIDE, "num_key_value_heads": 4},
    ),
    "glm-dsa": ("GlmMoeDsaForCausalLM", {}, {**LATENT, **EXPERTS}),
    "kimi-linear": (
        "KimiLinearForCausalLM",
        {},
        {**LATENT, **EXPERTS, "q_lora_rank": None, "linear_head_dim": 32},
    ),
    "apertus": ("ApertusForCausalLM", {"rope_parameters": PLAIN_ROPE}, WIDE),
    "exaone-moe": ("ExaoneMoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "afmoe": ("AfmoeForCausalLM", {}, {**WIDE, **EXPERTS}),
    "mimo2": ("MiMoV2FlashForCausalLM", {}, {**WIDE, **EXPERTS, "head_dim": 96, "v_head_dim": 64}),
    "bailingmoe2": (
        "Glm4MoeForCausalLM",
        {"head_dim": 8, "attention_bias": False},
        {**WIDE, **EXPERTS, "attention_bias": False},
    ),
    "qwen2vl": ("Qwen2ForCausalLM", {}, WIDE),
    "qwen3vl": ("Qwen3ForCausalLM", {}, WIDE),
    "qwen3vlmoe": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}, {**WIDE, **EXPERTS}),
    "paddleocr": ("LlamaForCausalLM", {"head_dim": 8}, WIDE),
    "hunyuan_vl": ("HunYuanDenseV1ForCausalLM", {}, WIDE),
    "gemma4": ("Gemma4ForCausalLM", {}, {**WIDE, "global_head_dim": 128}),
    "gemma4-moe": (
        "Gemma4ForCausalLM",
        {**GEMMA4_MOE, "moe_intermediate_size": 16},
        {**WIDE, "global_head_dim": 128, "moe_intermediate_size": 256},
    ),
}
_FEW = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ONE_SLIDES = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "Ministral3ForCausalLM": ("ministral3", {"head_dim": 8}),
    "ExaoneMoeForCausalLM": ("exaone_moe", {**_FEW, **_ONE_SLIDES}),
    "AfmoeForCausalLM": (
        "afmoe",
        {**_FEW, **_ONE_SLIDES, "num_dense_layers": 1, "mup_enabled": True},
    ),
    "MiMoV2FlashForCausalLM": (
        "mimo_v2_flash",
        {**_FEW, "n_routed_experts": 4, "head_dim": 12, "v_head_dim": 8, "sliding_window": 6},
    ),
}
"""Classes that are served over transformers -> model type, and fields of a tiny config."""
ARCHITECTURES = {
    "Gemma4ForCausalLM": "gemma4",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "Lfm2MoeForCausalLM": "lfm2moe",
    "Ministral3ForCausalLM": "mistral3",
    "GlmMoeDsaForCausalLM": "glm-dsa",
    "KimiLinearForCausalLM": "kimi-linear",
    "ApertusForCausalLM": "apertus",
    "ExaoneMoeForCausalLM": "exaone-moe",
    "AfmoeForCausalLM": "afmoe",
    "MiMoV2FlashForCausalLM": "mimo2",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}
OF_CASE = {
    **{name: name for name in ("mistral3", "bailingmoe2", "qwen2vl", "qwen3vl", "qwen3vlmoe")},
    **{name: name for name in ("hunyuan_vl", "paddleocr")},
    "nemotron_h_moe": "nemotron_h_moe",
    "nemotron_h_moe-plain": "nemotron_h_moe",
}
"""GGUF's names in cases of classes that have several."""
NOT_SAID: dict[str, set[str]] = {
    "bailingmoe2": {"num_nextn_predict_layers"},
    "mimo2": {"rope_parameters"},
    "nemotron_h_moe": {"intermediate_size", "max_position_embeddings"},
    "nemotron_h_moe-plain": {"intermediate_size", "max_position_embeddings"},
}
LOOSE_CASES = ("qwen35", "qwen35moe")
