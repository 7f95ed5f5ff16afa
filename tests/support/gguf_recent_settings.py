"""The settings that llama.cpp's converters write for families of 2025 and 2026.

Shares nothing with the reader. `gguf_settings` says what a table of settings has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]


def _qwen35(config: Config) -> dict[str, Any]:
    size = config["linear_value_head_dim"] * config["linear_num_value_heads"]
    return {
        "ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "ssm_state_size": config["linear_key_head_dim"],
        "ssm_group_count": config["linear_num_key_heads"],
        "ssm_time_step_rank": config["linear_num_value_heads"],
        "ssm_inner_size": size,
        "full_attention_interval": config["layer_types"].index("full_attention") + 1,
        "rope_dimension_sections": _in_three(config["head_dim"] // 8),
    }


def _gemma4(config: Config) -> dict[str, Any]:
    kinds, own = config["layer_types"], config["per_layer_config"]
    slides = [kind == "sliding_attention" for kind in kinds]
    usual, inner = config["num_key_value_heads"], config["intermediate_size"]
    heads = [own.get(str(i), {}).get("num_key_value_heads", usual) for i in range(len(kinds))]
    shared = config["num_kv_shared_layers"]
    wide = [inner] * (len(kinds) - shared) + [2 * inner] * shared
    full = next(iter(own.values()))["head_dim"]
    return {
        "sliding_window_pattern": slides,
        "head_count_kv": heads,
        "shared_kv_layers": shared,
        "feed_forward_length": wide if config["use_double_wide_mlp"] else inner,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope_freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        **dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), full),
        **dict.fromkeys(("key_length_swa", "value_length_swa", "rope_dimension_count_swa"),
                        config["head_dim"]),
        "expert_used_count": config.get("top_k_experts"),
    }  # fmt: skip


def _minimax_m2(config: Config) -> dict[str, Any]:
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "rope_dimension_count": config["rotary_dim"],
    }


def _kv_heads(config: Config, count: int) -> list[int]:
    return [count * (kind == "full_attention") for kind in config["layer_types"]]


def _lfm2moe(config: Config) -> dict[str, Any]:
    return {
        "head_count_kv": _kv_heads(config, config["num_key_value_heads"]),
        "shortconv_l_cache": config["conv_L_cache"],
        "layer_norm_rms_eps": config["norm_eps"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_gating_func": _sigmoid(),
    }


def _sigmoid() -> Any:
    import gguf

    return gguf.ExpertGatingFuncType.SIGMOID


def _nemotron_h_moe(config: Config) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    inner = config["moe_intermediate_size"]
    return {
        "ssm_conv_kernel": config["conv_kernel"],
        "ssm_state_size": config["ssm_state_size"],
        "ssm_time_step_rank": config["mamba_num_heads"],
        "ssm_group_count": config["n_groups"],
        "ssm_inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "head_count_kv": [
            config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds
        ],
        "feed_forward_length": [inner * (kind == "moe") for kind in kinds],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "moe_latent_size": config["moe_latent_size"],
        "context_length": 1 << 20,
        "rope_freq_base": None,
    }


def _ministral3(config: Config) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return {
        "attn_temperature_scale": rope["llama_4_scaling_beta"],
        "rope_scaling_yarn_log_mul": rope["mscale_all_dim"],
        "rope_scaling_yarn_beta_fast": rope["beta_fast"],
        "rope_scaling_yarn_beta_slow": rope["beta_slow"],
    }


def _latent(config: Config) -> dict[str, Any]:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "head_count_kv": 1,
        "key_length": rank + turned,
        "value_length": rank,
        "key_length_mla": config["qk_nope_head_dim"] + turned,
        "value_length_mla": config["v_head_dim"],
        "kv_lora_rank": rank,
        "q_lora_rank": config["q_lora_rank"],
        "rope_dimension_count": turned,
        "expert_gating_func": _sigmoid(),
        "leading_dense_block_count": config["first_k_dense_replace"],
    }


def _glm_dsa(config: Config) -> dict[str, Any]:
    return {
        **_latent(config),
        "indexer_head_count": config["index_n_heads"],
        "indexer_key_length": config["index_head_dim"],
        "indexer_top_k": config["index_topk"],
    }


def _kimi_linear(config: Config) -> dict[str, Any]:
    return {
        **_latent(config),
        "value_length": None,
        "head_count_kv": _kv_heads(config, 1),
        "context_length": config["model_max_length"],
        "ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "kda_head_dim": config["linear_head_dim"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "rope_freq_base": None,
    }


def _slides(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _exaone_moe(config: Config) -> dict[str, Any]:
    return {
        "sliding_window_pattern": _slides(config),
        "expert_shared_count": config["num_shared_experts"],
        "expert_gating_func": _sigmoid(),
        "nextn_predict_layers": 0,
    }


def _afmoe(config: Config) -> dict[str, Any]:
    return {
        "sliding_window_pattern": _slides(config),
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["route_scale"],
        "expert_gating_func": _sigmoid(),
    }


def _mimo2(config: Config) -> dict[str, Any]:
    ropes, heads = config["rope_parameters"], config["num_key_value_heads"]
    full = ropes["full_attention"]["partial_rotary_factor"]
    return {
        "sliding_window_pattern": [int(one) for one in _slides(config)],
        "head_count_kv": [heads * (1 + one) for one in _slides(config)],
        "value_length": config["v_head_dim"],
        "rope_dimension_count": int(config["head_dim"] * full),
        "rope_freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }


def _sections(config: Config) -> dict[str, Any]:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"rope_dimension_sections": _in_three(size // 2)}


def _in_three(pairs: int) -> list[int]:
    """Return sections for positions in time, height and width."""
    return [pairs - pairs // 4 * 2, pairs // 4, pairs // 4, 0]


SETTINGS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "gemma4_text": _gemma4,
    "minimax_m2": _minimax_m2,
    "lfm2_moe": _lfm2moe,
    "ministral3": _ministral3,
    "glm_moe_dsa": _glm_dsa,
    "kimi_linear": _kimi_linear,
    "nemotron_h_moe": _nemotron_h_moe,
    "exaone_moe": _exaone_moe,
    "afmoe": _afmoe,
    "mimo_v2_flash": _mimo2,
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe", "paddleocr"), _sections),
}
"""By model type or by GGUF's name."""
