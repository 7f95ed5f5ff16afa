"""Facts of Hunyuan 4: what a row caches, and config.json defaults."""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types.deepseek import indexed_latents

FACTS = ModelFacts(
    cache=f"{indexed_latents.__module__}:{indexed_latents.__name__}",
    length_is_scaled=True,
    defaults={
        "vocab_size": 120832,
        "hidden_size": 2816,
        "intermediate_size": 6912,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "n_group": 1,
        "topk_group": 1,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 120000,
        "eos_token_id": 120025,
        "pad_token_id": 120002,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 16,
        "hc_mult": 4,
        "hc_magnitude": 2.0,
        "hc_eps": 1e-6,
    },
)
LARGE = {
    "hidden_size": 6144,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "index_n_heads": 32,
}
HY_V4 = Value(summary="Hunyuan 4 (Hy4-preview)", value=FACTS)
HY_V4_VL_TEXT = Value(
    summary="the text part of Hunyuan 4 (Hy4)",
    value=replace(FACTS, defaults={**FACTS.defaults, **LARGE}),
)
