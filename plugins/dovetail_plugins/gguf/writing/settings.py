"""The settings of a GGUF file for a Hugging Face checkpoint: the inverse of `_config.py`.

Imports no torch. Source: the key names of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
and the values of llama.cpp's converters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.config.checkpoint.rope import FULL, rope_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Phi3ForCausalLM": "phi3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GPT2LMHeadModel": "gpt2",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "OlmoForCausalLM": "olmo",
    "OlmoeForCausalLM": "olmoe",
    "GraniteForCausalLM": "granite",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4moe",
    "SmolLM3ForCausalLM": "smollm3",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "SeedOssForCausalLM": "seed_oss",
    "Exaone4ForCausalLM": "exaone4",
    "ArceeForCausalLM": "arcee",
    "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2",
    "NemotronForCausalLM": "nemotron",
    "Dots1ForCausalLM": "dots1",
}
"""Architectures of checkpoints -> GGUF's name."""

_PARTS = "its matrices are stored in parts that no table of names describes"
_STATES = "its layers have states, which converters compute anew"
REFUSED: dict[str, str] = {
    "DeepseekV2ForCausalLM": _PARTS,
    "DeepseekV3ForCausalLM": _PARTS,
    "DeepseekV32ForCausalLM": _PARTS,
    "GptOssForCausalLM": "its experts are published in MXFP4, quantized already",
    "GraniteMoeForCausalLM": "its experts are in one tensor",
    "Llama4ForConditionalGeneration": "its experts are in one tensor",
    "MambaForCausalLM": _STATES,
    "FalconMambaForCausalLM": _STATES,
    "Mamba2ForCausalLM": _STATES,
    "FalconH1ForCausalLM": _STATES,
    "GraniteMoeHybridForCausalLM": _STATES,
    "JambaForCausalLM": _STATES,
    "Qwen3NextForCausalLM": _STATES,
    "NemotronHForCausalLM": _STATES,
}
"""Architectures that are not written, and why."""

_PLAIN = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads", "n_head"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_topk", "moe_k"),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index"),
    "interleave_moe_layer_step": ("moe_layer_interval",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
}
"""Counts: GGUF's key -> the config's, the first that is there."""
_REAL = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_eps"),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "expert_weights_scale": ("routed_scaling_factor",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
}
_SLIDING = ("exaone4", "olmo3")
"""Types whose files say which layers slide."""
_SIGMOID = 2
_FEW: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "olmo": lambda config: {"attention.layer_norm_epsilon": 1e-5},
    "hunyuan_v1_moe": lambda config: {"expert_feed_forward_length": config["intermediate_size"]},
    "dots1": lambda config: {"expert_gating_func": _SIGMOID},
    "glm4_moe": lambda config: {"expert_gating_func": _SIGMOID},
    "ernie4_5_moe": lambda config: {
        "expert_shared_feed_forward_length": config["moe_num_shared_experts"]
        * config["moe_intermediate_size"]
    },
}
"""A type of model -> settings that only it has."""


def settings_of(model: ModelSpec) -> dict[str, Any]:
    """Return the model's settings under GGUF's names. Raises: ConfigError for settings that GGUF
    cannot express."""
    prefix, config = ARCHITECTURES[model.architecture], model.hf_config
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise _unsaid(model, "layers without experts among those with")
    settings: dict[str, Any] = {"vocab_size": model.vocab_size}
    for key, names in _PLAIN.items():
        value = next((config[n] for n in names if config.get(n) is not None), None)
        if value is not None:
            settings[key] = int(value)
    for key, names in _REAL.items():
        value = next((config[n] for n in names if config.get(n) is not None), None)
        if value is not None:
            settings[key] = float(value)
    kind = str(config.get("model_type"))
    if config.get("norm_topk_prob") is not None and not kind.startswith("qwen"):
        settings["expert_weights_norm"] = bool(config["norm_topk_prob"])
    if kind in _SLIDING and config.get("sliding_window"):
        slides = [one == "sliding_attention" for one in config["layer_types"]]
        settings["attention.sliding_window_pattern"] = slides
    settings |= _FEW[kind](config) if kind in _FEW else {}
    settings |= {"attention.key_length": model.head_size, "attention.value_length": model.head_size}
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        settings["attention.sliding_window"] = int(window)
    if prefix == "gpt2":
        settings.setdefault("feed_forward_length", 4 * model.hidden_size)
    else:
        settings |= _rope(model)
    return {"general.architecture": prefix} | {f"{prefix}.{k}": v for k, v in settings.items()}


def rotary_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings of layers that see everything, in either spelling of configs."""
    rope = rope_of(config, FULL)
    theta = rope.get("rope_theta") or config.get("rope_theta")
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {**rope, "rope_type": kind, "rope_theta": theta, "partial_rotary_factor": share}


def _rope(model: ModelSpec) -> dict[str, Any]:
    rope = rotary_of(model.hf_config)
    kind, settings = rope["rope_type"], {}
    if rope["rope_theta"] is not None:
        settings["rope.freq_base"] = float(rope["rope_theta"])
    settings["rope.dimension_count"] = int(model.head_size * (rope["partial_rotary_factor"] or 1))
    trained = rope.get("original_max_position_embeddings") or model.hf_config.get(
        "original_max_position_embeddings"
    )
    if kind in ("linear", "yarn"):
        settings |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    elif kind == "longrope" and rope.get("attention_factor"):
        settings["rope.scaling.attn_factor"] = float(rope["attention_factor"])
    elif kind not in ("default", "llama3", "longrope"):
        raise _unsaid(model, f'the rope scaling "{kind}"')
    if trained and kind in ("yarn", "longrope"):
        settings["rope.scaling.original_context_length"] = int(trained)
    return settings


def _unsaid(model: ModelSpec, what: str) -> ConfigError:
    return ConfigError(
        f"GGUF has no word for {what}.",
        where=f"{model.path}/config.json",
        fix="choose a method that keeps config.json: int8, int4, fp8, gptq, awq.",
    )


def rope_tensors(model: ModelSpec) -> dict[str, list[float]]:
    """Return the rotary divisors stored as tensors: Llama 3's, or those of long contexts."""
    rope = rotary_of(model.hf_config)
    if rope["rope_type"] == "longrope":
        names = {"rope_factors_long.weight": "long_factor",
                 "rope_factors_short.weight": "short_factor"}  # fmt: skip
        return {ours: [float(x) for x in rope[theirs]] for ours, theirs in names.items()}
    if rope["rope_type"] != "llama3":
        return {}
    size = int(model.head_size * (rope["partial_rotary_factor"] or 1))
    theta = float(rope["rope_theta"] or 10000.0)
    lengths = [2 * math.pi * theta ** (2 * i / size) for i in range(size // 2)]
    return {"rope_freqs.weight": [_llama3_divisor(rope, length) for length in lengths]}


def _llama3_divisor(rope: Mapping[str, Any], length: float) -> float:
    """Return the divisor of the frequency of a wave of this length. Source: Llama 3.1."""
    trained, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    if length < trained / high:
        return 1.0
    if length > trained / low:
        return factor
    share = (trained / length - low) / (high - low)
    return 1 / ((1 - share) / factor + share)
