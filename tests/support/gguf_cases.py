"""Families of GGUF files that tests write: the checkpoint's architecture, changes of its config,
and sizes at which rows are whole blocks of 256, that llama.cpp reads, too."""

from __future__ import annotations

from typing import Any

from support import gguf_recent

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.8,
    "mscale_all_dim": 0.8,
}
FOUR = {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}
HYBRID = {"hidden_size": 256, "intermediate_size": 256, "mamba_d_head": 64}
WIDE = {"hidden_size": 256, "intermediate_size": 256}
EVERY = {"num_key_value_heads": 4}
EXPERTS = {"moe_intermediate_size": 256}
LATENT = {**WIDE, **EXPERTS, "q_lora_rank": 256, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
          "qk_rope_head_dim": 16, "v_head_dim": 64, "head_dim": 16}  # fmt: skip
H1 = {"projectors_bias": False, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "deepseek2": ("DeepseekV2ForCausalLM", {}, LATENT),
    "deepseek2-lite": (
        "DeepseekV2ForCausalLM",
        {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
        {**LATENT, "q_lora_rank": None},
    ),
    "deepseek3": ("DeepseekV3ForCausalLM", {"rope_parameters": YARN}, LATENT),
    "mamba": (
        "MambaForCausalLM",
        {"intermediate_size": 64},
        {"hidden_size": 256, "intermediate_size": 512},
    ),
    "falcon-mamba": (
        "FalconMambaForCausalLM",
        {"intermediate_size": 64},
        {"hidden_size": 256, "intermediate_size": 512},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"intermediate_size": 64},
        {"hidden_size": 256, "intermediate_size": 512, "num_heads": 8, "head_dim": 64},
    ),
    "falcon-h1": (
        "FalconH1ForCausalLM",
        {**H1, "head_dim": 8, "mamba_d_head": 8},
        {**WIDE, "head_dim": 64, "mamba_d_ssm": 512, "mamba_d_head": 64},
    ),
    "lfm2": ("Lfm2ForCausalLM", {}, {"hidden_size": 256, "intermediate_size": 768}),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", {}, HYBRID),
    "jamba": ("JambaForCausalLM", {"num_hidden_layers": 4}, WIDE),
    "llama4": (
        "Llama4ForCausalLM",
        {**FOUR, "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
        {**WIDE, "intermediate_size_mlp": 512, "head_dim": 64},
    ),
    "qwen3next": (
        "Qwen3NextForCausalLM",
        {},
        {**WIDE, **EXPERTS, "head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        # Layers of experts make a file of another architecture, nemotron_h_moe.
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
        {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "mamba_head_dim": 64},
    ),
    "starcoder": (
        "GPTBigCodeForCausalLM",
        {"n_inner": 128, "num_key_value_heads": 1, "activation_function": "gelu_pytorch_tanh"},
        {"n_embd": 256, "n_inner": 512},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": None}, WIDE),
    "falcon": ("FalconForCausalLM", {"num_kv_heads": 1}, {"hidden_size": 256}),
    "falcon-two-norms": (
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "multi_query": False, "num_kv_heads": 2},
        {"hidden_size": 256},
    ),
    "bloom": ("BloomForCausalLM", {}, {"hidden_size": 256}),
    "mpt": ("MptForCausalLM", {}, {"d_model": 256}),
    "gptneox": ("GPTNeoXForCausalLM", {}, {"hidden_size": 256, "intermediate_size": 512}),
    "phi2": ("PhiForCausalLM", {"num_key_value_heads": 4}, WIDE),
    "stablelm": ("StableLmForCausalLM", {}, WIDE),
    "stablelm-parallel": (
        "StableLmForCausalLM",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
        WIDE,
    ),
    "nemotron": ("NemotronForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "granite": ("GraniteForCausalLM", {}, WIDE),
    "granitemoe": ("GraniteMoeForCausalLM", {}, WIDE),
    "granitemoe-shared": (
        "GraniteMoeSharedForCausalLM",
        {},
        {**WIDE, "shared_intermediate_size": 256},
    ),
    "olmo": ("OlmoForCausalLM", {}, WIDE),
    "olmoe": ("OlmoeForCausalLM", {}, {**WIDE, "num_key_value_heads": 4}),
    "exaone4": ("Exaone4ForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "smollm3": ("SmolLM3ForCausalLM", FOUR, WIDE),
    "arcee": ("ArceeForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "ernie4_5": ("Ernie4_5ForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", {}, {**WIDE, **EXPERTS, "use_bias": False}),
    "seed_oss": ("SeedOssForCausalLM", {}, {**WIDE, "head_dim": 64}),
    "dots1": (
        "Dots1ForCausalLM",
        {"sliding_window": None},
        {**WIDE, **EXPERTS, **EVERY, "head_dim": 64},
    ),
    "command-r": ("CohereForCausalLM", {}, {**WIDE, "use_qk_norm": False}),
    **gguf_recent.CASES,
}
