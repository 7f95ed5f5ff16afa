"""Gemma 4: heads of two sizes, inputs of layers, and experts parallel to an MLP. Imports no torch.

Of the halves of a head that turn in layers which see everything only the first part does: the file
has divisors (`rope_freqs`) that stop the others. Source: Gemma4Model in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/gemma.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.families.family import TRUNK, Family, FamilyNames, usual_rows
from dovetail_plugins.gguf.families.layouts import BLOCK, FOUR_NORMS
from dovetail_plugins.gguf.families.parts import kinds, matrix_rows, num_layers
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.model_types.gemma4 import heads

_FULL, _SLIDING = "full_attention", "sliding_attention"
_STOPPED = 1e20
"""Divisors of at least this much stop a pair."""
_BLOCK = {
    "ffn_gate_inp": "router.proj",
    "ffn_gate_exps": "experts.gate_proj",
    "ffn_up_exps": "experts.up_proj",
    "ffn_down_exps": "experts.down_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_OWN = {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
_TRUNK = TRUNK | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}


def _gemma4(settings: Settings) -> dict[str, Any]:
    types = kinds(settings, every=6)["layer_types"]
    return {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "layer_types": types,
        "rms_norm_eps": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 512,
        "final_logit_softcapping": settings.find(".final_logit_softcapping", float),
        "num_kv_shared_layers": settings.find(".attention.shared_kv_layers", int) or 0,
        "rope_parameters": _ropes(settings),
        **_mlps(settings),
        **_heads(settings, types),
        **_layer_inputs(settings),
        **_experts(settings),
    }


def _mlps(settings: Settings) -> dict[str, Any]:
    """Return the sizes of MLPs: twice as wide in layers that read other layers' keys and values, or
    the same in all. Raises: ConfigError for others"""
    widths = settings.per_block(".feed_forward_length")[: num_layers(settings)]
    shared = settings.find(".attention.shared_kv_layers", int) or 0
    first, usual = len(widths) - shared, widths[0]
    is_wide = len(set(widths)) > 1
    if widths != [usual] * first + [usual * (1 + is_wide)] * shared:
        raise ConfigError(
            f"{settings.architecture}.feed_forward_length is {widths}: the last {shared} of "
            f"{len(widths)} layers may be twice as wide, and no others.",
            where=str(settings.model.path),
        )
    return {"intermediate_size": usual, "use_double_wide_mlp": is_wide}


def _heads(settings: Settings, types: list[str]) -> dict[str, Any]:
    """Return the heads of sliding layers, and how the others' differ, layer by layer."""
    counts = settings.per_block(".attention.head_count_kv")
    sizes = {_FULL: settings.number(".attention.key_length")}
    sizes[_SLIDING] = settings.find(".attention.key_length_swa", int) or sizes[_FULL]
    usual = next((n for n, kind in zip(counts, types, strict=False) if kind == _SLIDING), counts[0])
    own = {
        str(layer): _differing(counts[layer], usual, sizes)
        for layer, kind in enumerate(types)
        if kind == _FULL
    }
    valued = {*settings.blocks_with("attn_v.weight")}
    keyed = {*settings.blocks_with("attn_k.weight")}
    return {
        "head_dim": sizes[_SLIDING],
        "global_head_dim": sizes[_FULL],
        "num_key_value_heads": usual,
        "per_layer_config": {layer: differing for layer, differing in own.items() if differing},
        "attention_k_eq_v": bool(keyed - valued),
    }


def _differing(count: int, usual: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return what differs in a layer that sees everything."""
    own = {"head_dim": sizes[_FULL], "num_key_value_heads": count}
    others = {"head_dim": sizes[_SLIDING], "num_key_value_heads": usual}
    return {name: value for name, value in own.items() if value != others[name]}


def _ropes(settings: Settings) -> dict[str, Any]:
    """Return the rotations of both kinds of layers."""
    full: dict[str, Any] = {"rope_type": "default"}
    divisors = settings.factors("rope_freqs.weight")
    if divisors is not None:
        turned = sum(one < _STOPPED for one in divisors)
        if any(one != 1 for one in divisors[:turned]):
            raise ConfigError(
                "rope_freqs.weight: divisors other than 1, and those that stop a pair behind "
                "them, are not read for Gemma 4.",
                where=str(settings.model.path),
            )
        full = {"rope_type": "proportional", "partial_rotary_factor": turned / len(divisors)}
    local = settings.find(".rope.freq_base_swa", float) or 10000.0
    return {
        _FULL: {**full, "rope_theta": settings.find(".rope.freq_base", float) or 1e6},
        _SLIDING: {"rope_type": "default", "rope_theta": local},
    }


def _layer_inputs(settings: Settings) -> dict[str, Any]:
    size = settings.find(".embedding_length_per_layer_input", int) or 0
    if not size:
        return {"hidden_size_per_layer_input": 0}
    rows = matrix_rows(settings, "per_layer_token_embd.weight")
    return {"hidden_size_per_layer_input": size, "vocab_size_per_layer_input": rows}


def _experts(settings: Settings) -> dict[str, Any]:
    if not settings.find(".expert_count", int):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": settings.number(".expert_count"),
        "top_k_experts": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
    }


def _rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows of the first layer's matrices."""
    count, size = heads(config, 0)
    queries = config["num_attention_heads"] * size
    first = {"attn_q.weight": queries, "attn_k.weight": count * size}
    return usual_rows(config) | first


FAMILIES = {
    "gemma4": Family(
        config=_gemma4,
        names=FamilyNames(block=BLOCK | FOUR_NORMS | _BLOCK, own=_OWN, trunk=_TRUNK),
        rows=_rows,
    ),
}
"""general.architecture -> how files of it are read."""
