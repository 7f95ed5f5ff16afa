"""The config.json of decoders that attend in every layer and have one MLP, from a GGUF file's
settings. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from dovetail_plugins.gguf.families.family import Family, FamilyNames, joined_mlp_rows
from dovetail_plugins.gguf.families.layouts import FALCON_TWO_NORMS, LAYOUTS
from dovetail_plugins.gguf.families.parts import (
    common,
    gated,
    granite_scales,
    kinds,
    layer_norm_eps,
    matrix_rows,
    rope,
)
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch


def _llama(settings: Settings) -> dict[str, Any]:
    window = settings.find(".attention.sliding_window", int) or None
    experts = settings.find(".expert_count", int) or 0
    has_bias = settings.has("attn_q.bias")
    if experts:
        picked = settings.number(".expert_used_count")
        return gated(settings, "mixtral", "MixtralForCausalLM", num_local_experts=experts,
                      num_experts_per_tok=picked, sliding_window=window)  # fmt: skip
    if window:
        return gated(settings, "mistral", "MistralForCausalLM", sliding_window=window)
    if has_bias and not settings.has("attn_output.bias"):  # Qwen's weights in Llama's layout
        return _qwen2(settings)
    more = {"attention_bias": has_bias, "mlp_bias": settings.has("ffn_up.bias")}
    return gated(settings, "llama", "LlamaForCausalLM", **more)


def _qwen2(settings: Settings) -> dict[str, Any]:
    return gated(settings, "qwen2", "Qwen2ForCausalLM", use_sliding_window=False)


def _qwen3(settings: Settings) -> dict[str, Any]:
    return gated(settings, "qwen3", "Qwen3ForCausalLM", use_sliding_window=False)


def _olmo2(settings: Settings) -> dict[str, Any]:
    window = settings.find(".attention.sliding_window", int)
    if not window:
        return gated(settings, "olmo2", "Olmo2ForCausalLM")
    more = {"sliding_window": window, **kinds(settings, every=4)}
    return gated(settings, "olmo3", "Olmo3ForCausalLM", **more)


def _cohere2(settings: Settings) -> dict[str, Any]:
    more = {
        "layer_norm_eps": settings.find(".attention.layer_norm_epsilon", float) or 1e-5,
        "logit_scale": settings.find(".logit_scale", float) or 0.0625,
        "sliding_window": settings.find(".attention.sliding_window", int) or 4096,
        **kinds(settings, every=4),
    }
    return gated(settings, "cohere2", "Cohere2ForCausalLM", **more)


def _glm4(settings: Settings) -> dict[str, Any]:
    has_bias = settings.tensor("blk.0.attn_q.bias") is not None
    pad = settings.find("tokenizer.ggml.padding_token_id", int)
    more = {"attention_bias": has_bias, "pad_token_id": pad}
    return gated(settings, "glm4", "Glm4ForCausalLM", **more)


def _phi3(settings: Settings) -> dict[str, Any]:
    trained = settings.find(".rope.scaling.original_context_length", int)
    more = {} if trained is None else {"original_max_position_embeddings": trained}
    window = settings.find(".attention.sliding_window", int) or None
    return gated(settings, "phi3", "Phi3ForCausalLM", sliding_window=window, **more)


def _gemma(settings: Settings) -> dict[str, Any]:
    return gated(settings, "gemma", "GemmaForCausalLM", hidden_act="gelu_pytorch_tanh")


def _query_scale(settings: Settings, largest: int) -> dict[str, Any]:
    """Return the number whose root queries are divided by: the largest size of a generation, known
    by its layers, divides by its hidden size per head."""
    counts = common(settings)
    per_head = counts["hidden_size"] // counts["num_attention_heads"]
    is_largest = counts["num_hidden_layers"] == largest
    return {"query_pre_attn_scalar": per_head if is_largest else counts["head_dim"]}


def _gemma2(settings: Settings) -> dict[str, Any]:
    more = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 4096,
        "attn_logit_softcapping": settings.find(".attn_logit_softcapping", float),
        "final_logit_softcapping": settings.find(".final_logit_softcapping", float),
        **_query_scale(settings, largest=46),
    }
    return gated(settings, "gemma2", "Gemma2ForCausalLM", **more)


def _gemma3(settings: Settings) -> dict[str, Any]:
    table = rope(settings)
    local = settings.find(".rope.freq_base_swa", float) or 10000.0
    more = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 1024,
        "rope_theta": settings.find(".rope.freq_base", float) or 1e6,
        "rope_local_base_freq": local,
        "rope_scaling": table["rope_scaling"],
        "final_logit_softcapping": settings.find(".final_logit_softcapping", float),
        **_pattern(settings),
        **_query_scale(settings, largest=62),
    }
    return gated(settings, "gemma3_text", "Gemma3ForCausalLM", **more)


def _gemma3n(settings: Settings) -> dict[str, Any]:
    scales = settings.find(".activation_sparsity_scale", list)
    pattern = settings.find(".attention.sliding_window_pattern", list)
    inner = settings.find(".feed_forward_length", (int, list))
    cap = settings.find(".final_logit_softcapping", float)
    optional = {
        "layer_types": pattern and kinds(settings, every=5)["layer_types"],
        "final_logit_softcapping": cap,
        "activation_sparsity_pattern": scales and [NormalDist().cdf(scale) for scale in scales],
    }
    return {
        "model_type": "gemma3n_text",
        "architectures": ["Gemma3nForCausalLM"],
        "intermediate_size": inner or settings.number(".feed_forward_length"),
        "rms_norm_eps": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 512,
        "rope_theta": settings.find(".rope.freq_base", float) or 1e6,
        "rope_local_base_freq": settings.find(".rope.freq_base_swa", float) or 10000.0,
        "rope_scaling": rope(settings)["rope_scaling"],
        "num_kv_shared_layers": settings.find(".attention.shared_kv_layers", int) or 0,
        "altup_active_idx": settings.find(".altup.active_idx", int) or 0,
        "altup_num_inputs": settings.number(".altup.num_inputs"),
        "hidden_size_per_layer_input": settings.number(".embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": matrix_rows(settings, "per_layer_token_embd.weight"),
        "laurel_rank": matrix_rows(settings, "blk.0.laurel_l.weight"),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _pattern(settings: Settings) -> dict[str, Any]:
    """Return which layers slide: every sixth does not, unless the file says otherwise."""
    pattern = settings.find(".attention.sliding_window_pattern", (int, list))
    if isinstance(pattern, list):
        return kinds(settings, every=6)
    return {"sliding_window_pattern": pattern or 6}


def _gpt2(settings: Settings) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": settings.number(".context_length"),
        "n_inner": settings.number(".feed_forward_length"),
        "layer_norm_epsilon": settings.find(".attention.layer_norm_epsilon", float) or 1e-5,
        "activation_function": "gelu_new",
    }


def _learned(settings: Settings, model_type: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of families with layer norms and an MLP without a gate."""
    return {
        "model_type": model_type,
        "architectures": [name],
        "intermediate_size": settings.number(".feed_forward_length"),
        **more,
    }


def _starcoder(settings: Settings) -> dict[str, Any]:
    config = _gpt2(settings) | {"activation_function": "gelu_pytorch_tanh"}
    has_one = common(settings)["num_key_value_heads"] == 1
    return config | {
        "model_type": "gpt_bigcode",
        "architectures": ["GPTBigCodeForCausalLM"],
        "multi_query": has_one,
    }


def _starcoder2(settings: Settings) -> dict[str, Any]:
    more = {
        "norm_epsilon": layer_norm_eps(settings),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": settings.has("attn_q.bias"),
        "sliding_window": settings.find(".attention.sliding_window", int) or None,
        **rope(settings),
    }
    return _learned(settings, "starcoder2", "Starcoder2ForCausalLM", **more)


def _falcon(settings: Settings) -> dict[str, Any]:
    heads, has_two = common(settings)["num_key_value_heads"], settings.has("attn_norm_2.weight")
    return {
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
        "num_kv_heads": heads,
        "new_decoder_architecture": has_two,
        "multi_query": heads == 1,
        "parallel_attn": True,
        "bias": settings.has("attn_qkv.bias"),
        "alibi": False,
        "layer_norm_epsilon": layer_norm_eps(settings),
        "ffn_hidden_size": settings.number(".feed_forward_length"),
        **rope(settings),
    }


def _bloom(settings: Settings) -> dict[str, Any]:
    counts = common(settings)
    return {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "n_layer": counts["num_hidden_layers"],
        "n_head": counts["num_attention_heads"],
        "seq_length": counts["max_position_embeddings"],
        "layer_norm_epsilon": layer_norm_eps(settings),
    }


def _mpt(settings: Settings) -> dict[str, Any]:
    counts = common(settings)
    max_bias = settings.find(".attention.max_alibi_bias", float) or 0.0
    return {
        "model_type": "mpt",
        "architectures": ["MptForCausalLM"],
        "d_model": counts["hidden_size"],
        "n_heads": counts["num_attention_heads"],
        "n_layers": counts["num_hidden_layers"],
        "max_seq_len": counts["max_position_embeddings"],
        "expansion_ratio": settings.number(".feed_forward_length") / counts["hidden_size"],
        "layer_norm_epsilon": layer_norm_eps(settings),
        "no_bias": not settings.has("attn_qkv.bias"),
        "attn_config": {
            "alibi": max_bias > 0,
            "alibi_bias_max": max_bias,
            "clip_qkv": settings.find(".attention.clamp_kqv", float),
        },
    }


def _gptneox(settings: Settings) -> dict[str, Any]:
    table = rope(settings)
    more = {
        "layer_norm_eps": layer_norm_eps(settings),
        "use_parallel_residual": settings.find(".use_parallel_residual", bool) is not False,
        "rotary_pct": table.get("partial_rotary_factor", 1.0),
        "attention_bias": settings.has("attn_qkv.bias"),
        "hidden_act": "gelu",
        **table,
    }
    return _learned(settings, "gpt_neox", "GPTNeoXForCausalLM", **more)


def _phi2(settings: Settings) -> dict[str, Any]:
    more = {"layer_norm_eps": layer_norm_eps(settings), "hidden_act": "gelu_new", **rope(settings)}
    return _learned(settings, "phi", "PhiForCausalLM", **more)


def _stablelm(settings: Settings) -> dict[str, Any]:
    more = {
        "layer_norm_eps": layer_norm_eps(settings),
        "use_parallel_residual": not settings.has("ffn_norm.weight"),
        "use_qkv_bias": settings.has("attn_q.bias"),
        "qk_layernorm": settings.has("attn_q_norm.weight"),
    }
    return gated(settings, "stablelm", "StableLmForCausalLM", **more)


def _nemotron(settings: Settings) -> dict[str, Any]:
    more = {"norm_eps": layer_norm_eps(settings), "hidden_act": "relu2", **rope(settings)}
    return _learned(settings, "nemotron", "NemotronForCausalLM", **more)


def _granite(settings: Settings) -> dict[str, Any]:
    more = {**granite_scales(settings), "attention_bias": settings.has("attn_q.bias")}
    return gated(settings, "granite", "GraniteForCausalLM", **more)


def _olmo(settings: Settings) -> dict[str, Any]:
    more = {"clip_qkv": settings.find(".attention.clamp_kqv", float)}
    return gated(settings, "olmo", "OlmoForCausalLM", **more)


def _exaone(settings: Settings) -> dict[str, Any]:
    eps = settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-5
    more = {
        "num_layers": settings.number(".block_count"),
        "layer_norm_epsilon": eps,
        "activation_function": "silu",
    }
    return gated(settings, "exaone", "ExaoneForCausalLM", **more)


def _exaone4(settings: Settings) -> dict[str, Any]:
    window = settings.find(".attention.sliding_window", int) or None
    types = kinds(settings, every=4) if window else {"sliding_window_pattern": None}
    return gated(settings, "exaone4", "Exaone4ForCausalLM", sliding_window=window, **types)


def _smollm3(settings: Settings) -> dict[str, Any]:
    return gated(settings, "smollm3", "SmolLM3ForCausalLM", no_rope_layer_interval=4)


def _arcee(settings: Settings) -> dict[str, Any]:
    return gated(settings, "arcee", "ArceeForCausalLM", hidden_act="relu2")


def _internlm2(settings: Settings) -> dict[str, Any]:
    return gated(settings, "internlm2", "InternLM2ForCausalLM", bias=settings.has("attn_q.bias"))


def _minicpm(settings: Settings) -> dict[str, Any]:
    layers, hidden = settings.number(".block_count"), settings.number(".embedding_length")
    # Files written before these settings contain MiniCPM 1 and 2, which all have these values.
    scale = settings.find(".embedding_scale", float) or 12.0
    depth = settings.find(".residual_scale", float) or 1.4 / layers**0.5
    logits = settings.find(".logit_scale", float) or hidden / 256
    more = {
        "scale_emb": scale,
        "scale_depth": depth * layers**0.5,
        "dim_model_base": hidden / logits,
    }
    return gated(settings, "minicpm", "MiniCPMForCausalLM", **more)


def _hunyuan(settings: Settings) -> dict[str, Any]:
    has_bias = settings.has("attn_q.bias")
    return gated(settings, "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", attention_bias=has_bias)


def _ernie(settings: Settings) -> dict[str, Any]:
    return gated(settings, "ernie4_5", "Ernie4_5ForCausalLM", use_bias=settings.has("attn_q.bias"))


def _seed_oss(settings: Settings) -> dict[str, Any]:
    more = {
        "attention_bias": settings.has("attn_q.bias"),
        "attention_out_bias": settings.has("attn_output.bias"),
    }
    return gated(settings, "seed_oss", "SeedOssForCausalLM", **more)


def _command_r(settings: Settings) -> dict[str, Any]:
    more = {
        "layer_norm_eps": layer_norm_eps(settings),
        "logit_scale": settings.find(".logit_scale", float) or 0.0625,
        "use_qk_norm": settings.has("attn_q_norm.weight"),
    }
    return gated(settings, "cohere", "CohereForCausalLM", **more)


def _falcon_names(model: GgufModel) -> FamilyNames | None:
    """Return the names of files whose attention and MLP have separate norms."""
    has_two = any(".attn_norm_2." in one.name for one in model.extents)
    return FALCON_TWO_NORMS if has_two else None


def _glm4_names(model: GgufModel) -> FamilyNames | None:
    """Return the names of files whose positions have sections for images (GLM-4V): in their heads,
    the first of all rotated pairs come before the second."""
    has_sections = f"{model.settings['general.architecture']}.rope.dimension_sections"
    if has_sections not in model.settings:
        return None
    return replace(LAYOUTS["glm4"], undo={"attn_q": _paired, "attn_k": _paired})


def _paired(model: GgufModel, tensor: torch.Tensor) -> torch.Tensor:
    """Return rows whose (i, i + half) of the rotated part of every head become neighbors."""
    settings = Settings(model)
    turned = settings.number(".rope.dimension_count")
    heads = tensor.unflatten(0, (-1, common(settings)["head_dim"]))
    pairs = heads[:, :turned].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    result = heads.clone()
    result[:, :turned] = pairs
    return result.flatten(0, 1)


_CONFIGS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "olmo2": _olmo2,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "gpt2": _gpt2,
    "starcoder": _starcoder,
    "starcoder2": _starcoder2,
    "falcon": _falcon,
    "bloom": _bloom,
    "mpt": _mpt,
    "gptneox": _gptneox,
    "phi2": _phi2,
    "stablelm": _stablelm,
    "nemotron": _nemotron,
    "granite": _granite,
    "olmo": _olmo,
    "exaone": _exaone,
    "exaone4": _exaone4,
    "smollm3": _smollm3,
    "arcee": _arcee,
    "internlm2": _internlm2,
    "minicpm": _minicpm,
    "hunyuan-dense": _hunyuan,
    "ernie4_5": _ernie,
    "seed_oss": _seed_oss,
    "command-r": _command_r,
}
"""general.architecture -> its config.json."""
_MORE: Mapping[str, dict[str, Any]] = {
    "phi3": {"rows": joined_mlp_rows},
    "glm4": {"rows": joined_mlp_rows, "other_names": _glm4_names},
    "falcon": {"other_names": _falcon_names},
}
FAMILIES = {
    name: Family(config=config, names=LAYOUTS[name], **_MORE.get(name, {}))
    for name, config in _CONFIGS.items()
}
"""general.architecture -> how files of it are read."""
