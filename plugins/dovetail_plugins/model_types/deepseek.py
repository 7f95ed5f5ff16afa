"""Facts of DeepSeek's models, and of Kimi K2, which has V3's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value


def latents(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: a latent in every layer."""
    return CacheFacts(
        num_attention_layers=int(config["num_hidden_layers"]),
        latent_size=int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"]),
    )


def indexed_latents(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row caches: a latent and an index key in every layer. (A layer that shares the
    previous one's picks has no key, but its blocks take the same room.)"""
    latent_facts = latents(config)
    return msgspec.structs.replace(latent_facts, index_size=int(config["index_head_dim"]))


_BOTH: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
V2_FACTS = ModelFacts(
    cache=f"{__name__}:latents",
    length_is_scaled=True,
    defaults={
        **_BOTH,
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "first_k_dense_replace": 0,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "norm_topk_prob": False,
    },
)
V3_FACTS = ModelFacts(
    cache=f"{__name__}:latents",
    length_is_scaled=True,
    defaults={
        **_BOTH,
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    },
)
_INDEX: dict[str, Any] = {"index_topk": 2048, "index_head_dim": 128}
V32_FACTS = ModelFacts(
    cache=f"{__name__}:indexed_latents",
    length_is_scaled=True,
    defaults={
        **V3_FACTS.defaults,
        **_INDEX,
        "max_position_embeddings": 163840,
        "index_n_heads": 64,
    },
)

GLM_MOE_DSA_FACTS = ModelFacts(
    cache=f"{__name__}:indexed_latents",
    length_is_scaled=True,
    defaults={
        **V3_FACTS.defaults,
        "vocab_size": 154880,
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-05,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        **_INDEX,
        "index_n_heads": 32,
    },
)

GLM4_MOE_LITE_FACTS = ModelFacts(
    cache=f"{__name__}:latents",
    length_is_scaled=True,
    defaults={
        **V3_FACTS.defaults,
        "vocab_size": 154880,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-05,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
    },
)


def latents_twice(config: Mapping[str, Any]) -> CacheFacts:
    """Return what a row of LongCat Flash caches: two latents in every block."""
    once = latents(config)
    return msgspec.structs.replace(once, num_attention_layers=2 * once.num_attention_layers)


LONGCAT_FLASH_FACTS = ModelFacts(
    cache=f"{__name__}:latents_twice",
    length_is_scaled=True,
    attribute_map={
        "num_hidden_layers": "num_layers",
        "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size",
        "num_experts_per_tok": "moe_topk",
    },
    defaults={
        **_BOTH,
        "vocab_size": 131072,
        "hidden_size": 6144,
        "num_layers": 28,
        "num_attention_heads": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000000.0,
        "ffn_hidden_size": 12288,
        "expert_ffn_hidden_size": 2048,
        "moe_topk": 12,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "routed_scaling_factor": 6.0,
    },
)

V1_FACTS = ModelFacts(
    defaults={
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "num_hidden_layers": 30,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
)

DEEPSEEK_V1 = Value(summary="DeepSeekMoE", value=V1_FACTS)
DEEPSEEK_V2 = Value(summary="DeepSeek V2", value=V2_FACTS)
DEEPSEEK_V3 = Value(summary="DeepSeek V3", value=V3_FACTS)
DEEPSEEK_V32 = Value(summary="DeepSeek V3.2", value=V32_FACTS)
GLM_MOE_DSA = Value(summary="GLM-5", value=GLM_MOE_DSA_FACTS)
GLM4_MOE_LITE = Value(summary="GLM-4.7-Flash", value=GLM4_MOE_LITE_FACTS)
LONGCAT_FLASH = Value(summary="LongCat Flash", value=LONGCAT_FLASH_FACTS)
KIMI_K2 = Value(summary="Kimi K2", value=V3_FACTS)
