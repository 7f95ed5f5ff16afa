"""Ling 1 as its checkpoints have it, made of a DeepSeekMoE: transformers lacks its type."""

from __future__ import annotations

from support.published_cases import Json, PublishedCase


def _settings(own: Json) -> Json:
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    dropped = ("scoring_func", "moe_layer_freq", "architectures")
    renamed = {names.get(key, key): value for key, value in own.items() if key not in dropped}
    return {**renamed, "model_type": "bailing_moe", "norm_head": False, "use_qkv_bias": False}


LING_1 = PublishedCase(
    model_type="deepseek",
    settings=_settings,
    names=(
        (r"^model\.embed_tokens", "model.word_embeddings"),
        (r"self_attn\.qkv_proj", "attention.query_key_value"),
        (r"self_attn\.o_proj", "attention.dense"),
    ),
    joined={"qkv_proj.": ("q_proj.", "k_proj.", "v_proj.")},
)
"""BailingMoeForCausalLM."""
