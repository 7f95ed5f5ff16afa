"""The settings that llama.cpp's converters write for some families, beside those of all.

Shares nothing with the reader. The keys are names of the package's `add_` methods; None: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support import gguf_recent_settings

Config = Mapping[str, Any]
MODELS = 1 << 20
"""The context length of models that have none."""


def settings_of(config: Config) -> dict[str, Any]:
    """Return the further settings of a model's type."""
    kind = config["model_type"]
    makers = {
        "deepseek_v2": _latent,
        "deepseek_v3": _latent,
        "mamba": _mamba,
        "falcon_mamba": _mamba,
        "mamba2": _mamba2,
        "falcon_h1": _falcon_h1,
        "lfm2": _lfm2,
        "granitemoehybrid": _granite_hybrid,
        "jamba": _jamba,
        "llama4_text": _llama4,
        "qwen3_next": _qwen3_next,
        "nemotron_h": _nemotron_h,
        "ernie4_5_moe": _ernie,
        **gguf_recent_settings.SETTINGS,
    }
    made = makers.get(config["gguf"]) or makers.get(kind)
    scales = {
        "attention_scale": config.get("attention_multiplier"),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling") or config.get("logit_scale"),
    }
    few = {
        **(scales if kind.startswith(("granite", "cohere")) else {}),
        "clamp_kqv": config.get("clip_qkv"),
        "parallel_residual": config.get("use_parallel_residual"),
        "expert_weights_norm": None if kind.startswith("qwen") else config.get("norm_topk_prob"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
    }
    if kind == "granitemoeshared":
        few["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
    if kind == "exaone4":
        slides = [one == "sliding_attention" for one in config["layer_types"]]
        few["sliding_window_pattern"] = slides
    if kind == "dots1":
        few["expert_gating_func"] = _gating("SIGMOID")
    if kind == "olmo":
        few["layer_norm_eps"] = 1e-5
    if kind == "mpt":
        few["max_alibi_bias"] = float(config["attn_config"]["alibi_bias_max"])
    if kind == "falcon":
        heads = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
        few |= {"head_count_kv": heads, "context_length": 2048}
    if kind == "gpt_bigcode":
        few |= {"head_count_kv": 1}
    if kind == "dbrx":
        attention, experts = config["attn_config"], config["ffn_config"]
        few |= {"head_count_kv": attention["kv_n_heads"], "clamp_kqv": attention["clip_qkv"],
                "layer_norm_eps": 1e-5, "feed_forward_length": experts["ffn_hidden_size"],
                "expert_count": experts["moe_num_experts"],
                "expert_used_count": experts["moe_top_k"]}  # fmt: skip
    if kind == "hunyuan_v1_moe":
        few |= {"expert_feed_forward_length": config["intermediate_size"],
                "expert_used_count": config["moe_topk"]}  # fmt: skip
    return few | (made(config) if made else {})


def _gating(name: str) -> Any:
    import gguf

    return gguf.ExpertGatingFuncType[name]


def _latent(config: Config) -> dict[str, Any]:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    scaling = config["rope_parameters"].get("mscale_all_dim")
    return {
        "head_count_kv": 1,
        "key_length": rank + turned,
        "value_length": rank,
        "key_length_mla": config["qk_nope_head_dim"] + turned,
        "value_length_mla": config["v_head_dim"],
        "kv_lora_rank": rank,
        "q_lora_rank": config["q_lora_rank"],
        "rope_dimension_count": turned,
        "expert_gating_func": _gating(
            "SIGMOID" if config["model_type"] == "deepseek_v3" else "SOFTMAX"
        ),
        "rope_scaling_yarn_log_mul": 0.1 * scaling if scaling else None,
    }


def _mixer(config: Config, *names: str) -> dict[str, Any]:
    keys = ("ssm_conv_kernel", "ssm_inner_size", "ssm_state_size", "ssm_time_step_rank",
            "ssm_group_count")  # fmt: skip
    return dict(zip(keys, (config[n] if n else None for n in names), strict=True))


def _mamba(config: Config) -> dict[str, Any]:
    names = ("conv_kernel", "intermediate_size", "state_size", "time_step_rank", "")
    return {
        **_mixer(config, *names),
        **_headless(config),
        "ssm_dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _headless(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": 0,
        "head_count": 0,
        "head_count_kv": None,
        "key_length": None,
        "value_length": None,
        "context_length": MODELS,
        "layer_norm_eps": None,
        "layer_norm_rms_eps": config["layer_norm_epsilon"],
        "rope_freq_base": None,
    }


def _mamba2(config: Config) -> dict[str, Any]:
    names = ("conv_kernel", "", "state_size", "num_heads", "n_groups")
    inner = config["num_heads"] * config["head_dim"]
    return {**_mixer(config, *names), **_headless(config), "ssm_inner_size": inner}


def _hybrid(config: Config) -> dict[str, Any]:
    names = ("mamba_d_conv", "", "mamba_d_state", "mamba_n_heads", "mamba_n_groups")
    inner = int(config["mamba_expand"] * config["hidden_size"])
    return {**_mixer(config, *names), "ssm_inner_size": inner}


def _falcon_h1(config: Config) -> dict[str, Any]:
    return {**_hybrid(config), "ssm_inner_size": config["mamba_d_ssm"]}


def _kv_heads(config: Config, attends: list[bool]) -> dict[str, Any]:
    return {"head_count_kv": [config["num_key_value_heads"] if one else 0 for one in attends]}


def _full(config: Config) -> list[bool]:
    return [kind == "full_attention" for kind in config["layer_types"]]


def _lfm2(config: Config) -> dict[str, Any]:
    inner, multiple = config["intermediate_size"], config["block_multiple_of"]
    if config["block_auto_adjust_ff_dim"]:
        inner = int(2 * inner / 3)
    return {
        **_kv_heads(config, _full(config)),
        "shortconv_l_cache": config["conv_L_cache"],
        "layer_norm_rms_eps": config["norm_eps"],
        "feed_forward_length": -(-inner // multiple) * multiple,
    }


def _granite_hybrid(config: Config) -> dict[str, Any]:
    return {
        **_hybrid(config),
        **_kv_heads(config, _full(config)),
        "context_length": MODELS,
        "rope_scaling_finetuned": False,
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
    }


def _jamba(config: Config) -> dict[str, Any]:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    attends = [i % period == offset for i in range(config["num_hidden_layers"])]
    names = ("mamba_d_conv", "", "mamba_d_state", "mamba_dt_rank", "")
    inner = config["mamba_expand"] * config["hidden_size"]
    kept = {**_mixer(config, *names), "ssm_inner_size": inner, "rope_freq_base": None}
    return {**kept, **_kv_heads(config, attends)}


def _llama4(config: Config) -> dict[str, Any]:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def _qwen3_next(config: Config) -> dict[str, Any]:
    names = ("linear_conv_kernel_dim", "", "linear_key_head_dim", "linear_num_value_heads",
             "linear_num_key_heads")  # fmt: skip
    inner = config["linear_value_head_dim"] * config["linear_num_value_heads"]
    every = config["layer_types"].index("full_attention") + 1
    return {**_mixer(config, *names), "ssm_inner_size": inner, "full_attention_interval": every}


def _nemotron_h(config: Config) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    names = ("conv_kernel", "", "ssm_state_size", "mamba_num_heads", "n_groups")
    inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    feed = [config["intermediate_size"] if kind == "mlp" else 0 for kind in kinds]
    return {
        **_mixer(config, *names),
        **_kv_heads(config, [kind in ("attention", "full_attention") for kind in kinds]),
        "ssm_inner_size": inner,
        "feed_forward_length": feed,
        "expert_count": None,
        "expert_used_count": None,
        "expert_feed_forward_length": None,
        "expert_shared_count": None,
        "expert_weights_scale": None,
        "expert_weights_norm": None,
        "expert_group_count": None,
        "expert_group_used_count": None,
        "context_length": MODELS,
        "rope_freq_base": None,
    }


def _ernie(config: Config) -> dict[str, Any]:
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": config["moe_num_shared_experts"]
        * config["moe_intermediate_size"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
    }
