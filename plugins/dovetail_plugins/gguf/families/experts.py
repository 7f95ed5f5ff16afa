"""The config.json of decoders with experts, from a GGUF file's settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_plugins.gguf.families.family import Family
from dovetail_plugins.gguf.families.layouts import LAYOUTS
from dovetail_plugins.gguf.families.parts import (
    drafting,
    gated,
    granite_scales,
    grouped_experts,
    rope,
)
from dovetail_plugins.gguf.reading.metadata import Settings


def _experts(settings: Settings) -> dict[str, Any]:
    return {
        "num_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _qwen2moe(settings: Settings) -> dict[str, Any]:
    shared = settings.number(".expert_shared_feed_forward_length")
    more = _experts(settings) | {
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": shared,
    }
    return gated(settings, "qwen2_moe", "Qwen2MoeForCausalLM", **more)


def _qwen3moe(settings: Settings) -> dict[str, Any]:
    more = _experts(settings) | {"norm_topk_prob": True}
    return gated(settings, "qwen3_moe", "Qwen3MoeForCausalLM", **more)


def _gpt_oss(settings: Settings) -> dict[str, Any]:
    inner = settings.number(".expert_feed_forward_length")
    kinds = ("sliding_attention", "full_attention") * settings.number(".block_count")
    table = rope(settings)
    more = {
        "rope_scaling": {**(table["rope_scaling"] or {"rope_type": "default"}), "truncate": False},
        "intermediate_size": inner,
        "num_local_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "sliding_window": settings.find(".attention.sliding_window", int) or 128,
        "layer_types": list(kinds[: settings.number(".block_count")]),
        "attention_bias": settings.tensor("blk.0.attn_q.bias") is not None,
    }
    return gated(settings, "gpt_oss", "GptOssForCausalLM", **more)


def _glm4moe(settings: Settings) -> dict[str, Any]:
    more = {
        **drafting(settings),
        **grouped_experts(settings),
        "attention_bias": settings.has("attn_q.bias"),
        "use_qk_norm": settings.has("attn_q_norm.weight"),
    }
    return gated(settings, "glm4_moe", "Glm4MoeForCausalLM", **more)


_GROUPS = {160: (8, 3), 256: (8, 4)}
"""Experts -> (groups, picked groups) of DeepSeek V2 and V3: older files do not state them."""
SIGMOID = 2


def _deepseek2(settings: Settings) -> dict[str, Any]:
    is_sigmoid = settings.find(".expert_gating_func", int) == SIGMOID
    is_sigmoid = is_sigmoid or settings.has("exp_probs_b.bias")
    if is_sigmoid:
        return deepseek(settings, "deepseek_v3", "DeepseekV3ForCausalLM")
    config = deepseek(settings, "deepseek_v2", "DeepseekV2ForCausalLM")
    method = "group_limited_greedy" if config.get("n_group", 1) > 1 else "greedy"
    return config | {"topk_method": method}


def _deepseek32(settings: Settings) -> dict[str, Any]:
    return deepseek(settings, "deepseek_v32", "DeepseekV32ForCausalLM") | indexed(settings)


def indexed(settings: Settings) -> dict[str, Any]:
    """Return the settings of the indexer that picks tokens to attend to."""
    return {
        "index_topk": settings.number(".attention.indexer.top_k"),
        "index_n_heads": settings.number(".attention.indexer.head_count"),
        "index_head_dim": settings.number(".attention.indexer.key_length"),
    }


def deepseek(settings: Settings, model_type: str, name: str) -> dict[str, Any]:
    """Return the settings of latent attention, and of experts if there are any."""
    more = {
        **drafting(settings),
        **latent_sizes(settings),
        "attention_bias": settings.has("attn_kv_a_mqa.bias"),
        "partial_rotary_factor": 1.0,
        **_picked(settings),
    }
    config = gated(settings, model_type, name, **more)
    return config | {"rope_scaling": _latent_scaling(settings, config["rope_scaling"])}


def latent_sizes(settings: Settings) -> dict[str, Any]:
    """Return the sizes of latent attention."""
    turned = settings.number(".rope.dimension_count")
    # With separate halves the plain lengths are those of the latent that queries meet.
    suffix = "_mla" if settings.find(".attention.key_length_mla", int) else ""
    has_rank = settings.has("attn_q_a.weight")
    return {
        "num_key_value_heads": settings.number(".attention.head_count"),
        "head_dim": turned,
        "kv_lora_rank": settings.number(".attention.kv_lora_rank"),
        "q_lora_rank": settings.find(".attention.q_lora_rank", int) if has_rank else None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": settings.number(f".attention.key_length{suffix}") - turned,
        "v_head_dim": settings.number(f".attention.value_length{suffix}"),
    }


def _picked(settings: Settings) -> dict[str, Any]:
    """Return how DeepSeek's experts are picked."""
    if not settings.has("ffn_gate_inp.weight"):
        count = settings.number(".block_count")
        return {"n_routed_experts": None, "first_k_dense_replace": count}
    experts = grouped_experts(settings)
    experts["norm_topk_prob"] = bool(settings.find(".expert_weights_norm", bool))
    if settings.find(".expert_group_count", int) is None:
        count = experts["n_routed_experts"]
        experts["n_group"], experts["topk_group"] = _GROUPS.get(count, (1, 1))
    return experts


def _latent_scaling(settings: Settings, scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return YaRN with DeepSeek's temperature, which is that of all numbers of a head: the file has
    a tenth of it. The turned ones' is the same, so that their table is not scaled."""
    weight = settings.find(".rope.scaling.yarn_log_multiplier", float)
    if scaling is None or weight is None:
        return scaling
    return {**scaling, "mscale": 10 * weight, "mscale_all_dim": 10 * weight}


def _llama4(settings: Settings) -> dict[str, Any]:
    # Of the published models only Maverick, with 128 experts, does not norm heads.
    experts = settings.find(".expert_count", int) or 0
    window = settings.find(".attention.sliding_window", int)
    more = {
        "intermediate_size": settings.number(".expert_feed_forward_length"),
        "intermediate_size_mlp": settings.number(".feed_forward_length"),
        "interleave_moe_layer_step": settings.number(".interleave_moe_layer_step"),
        "num_local_experts": experts,
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "use_qk_norm": experts != 128,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": window or 8192,
    }
    return gated(settings, "llama4_text", "Llama4ForCausalLM", **more)


def _granitemoe(settings: Settings) -> dict[str, Any]:
    shared = settings.find(".expert_shared_feed_forward_length", int)
    more = {
        **granite_scales(settings),
        "num_local_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "attention_bias": settings.has("attn_q.bias"),
    }
    if not shared:
        return gated(settings, "granitemoe", "GraniteMoeForCausalLM", **more)
    more["shared_intermediate_size"] = shared
    return gated(settings, "granitemoeshared", "GraniteMoeSharedForCausalLM", **more)


def _olmoe(settings: Settings) -> dict[str, Any]:
    more = {
        "num_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "norm_topk_prob": False,
    }
    return gated(settings, "olmoe", "OlmoeForCausalLM", **more)


def _dots1(settings: Settings) -> dict[str, Any]:
    more = {**grouped_experts(settings), "max_window_layers": settings.number(".block_count")}
    return gated(settings, "dots1", "Dots1ForCausalLM", **more)


def _hunyuan_moe(settings: Settings) -> dict[str, Any]:
    inner = settings.number(".expert_feed_forward_length")
    more = {
        "intermediate_size": inner,
        "num_experts": settings.number(".expert_count"),
        "moe_topk": settings.number(".expert_used_count"),
        "attention_bias": settings.has("attn_q.bias"),
    }
    return gated(settings, "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", **more)


def _ernie_moe(settings: Settings) -> dict[str, Any]:
    more = {
        "moe_num_experts": settings.number(".expert_count"),
        "moe_k": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "moe_num_shared_experts": settings.find(".expert_shared_count", int) or 0,
        "moe_layer_start_index": settings.find(".leading_dense_block_count", int) or 0,
        "moe_layer_interval": settings.find(".interleave_moe_layer_step", int) or 1,
        "moe_layer_end_index": -1,
        "use_bias": settings.has("attn_q.bias"),
    }
    return gated(settings, "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", **more)


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "gpt-oss": _gpt_oss,
    "glm4moe": _glm4moe,
    "deepseek2": _deepseek2,
    "deepseek32": _deepseek32,
    "llama4": _llama4,
    "granitemoe": _granitemoe,
    "olmoe": _olmoe,
    "dots1": _dots1,
    "hunyuan-moe": _hunyuan_moe,
    "ernie4_5-moe": _ernie_moe,
}
"""general.architecture -> its config.json."""
FAMILIES = {name: Family(config=config, names=LAYOUTS[name]) for name, config in _CONFIGS.items()}
"""general.architecture -> how files of it are read."""
