"""What tests write of the GGUF families of 2025 and 2026: cases, settings, changed tensors.

Shares nothing with the reader. The tables extend those of `gguf_cases`, `gguf_files`,
`gguf_settings` and `gguf_families`, which say what each has. Source: the converters of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Config = Mapping[str, Any]

WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
DELTA = {"linear_num_value_heads": 6}
WIDE_DELTA = {
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 32,
    "linear_key_head_dim": 32,
}
GEMMA4_MOE = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen35": ("Qwen3_5ForCausalLM", DELTA, {**WIDE, **WIDE_DELTA}),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", DELTA, {**WIDE, **EXPERTS, **WIDE_DELTA}),
    "gemma4": ("Gemma4ForCausalLM", {}, {**WIDE, "global_head_dim": 128}),
    "gemma4-moe": (
        "Gemma4ForCausalLM",
        {**GEMMA4_MOE, "moe_intermediate_size": 16},
        {**WIDE, "global_head_dim": 128, "moe_intermediate_size": 256},
    ),
}
ARCHITECTURES = {
    "Gemma4ForCausalLM": "gemma4",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}
BARE = ("layer_scalar",)
"""Ends of names that GGUF follows with ".weight"."""
NOT_SAID: dict[str, set[str]] = {}
LOOSE_CASES = ("qwen35", "qwen35moe")


def _qwen35(config: Config) -> dict[str, Any]:
    size = config["linear_value_head_dim"] * config["linear_num_value_heads"]
    return {
        "ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "ssm_state_size": config["linear_key_head_dim"],
        "ssm_group_count": config["linear_num_key_heads"],
        "ssm_time_step_rank": config["linear_num_value_heads"],
        "ssm_inner_size": size,
        "full_attention_interval": config["layer_types"].index("full_attention") + 1,
        "rope_dimension_sections": [1, 1, 0, 0],
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


SETTINGS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
    "gemma4_text": _gemma4,
}


def extra_of(config: Config) -> Arrays:
    """Return tensors that the file has in addition to the checkpoint's."""
    if config["model_type"] != "gemma4_text":
        return {}
    full = config["rope_parameters"]["full_attention"]
    pairs = next(iter(config["per_layer_config"].values()))["head_dim"] // 2
    turned = int(pairs * full["partial_rotary_factor"])
    divisors = [1.0] * turned + [1e30] * (pairs - turned)
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}


def _tiled(config: Config, values: Array, *, undo: bool = False) -> Array:
    """Return rows of all value heads in ggml's order: the first of every key head, then the
    second."""
    keys = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // keys
    shape = (each, keys, -1) if undo else (keys, each, -1)
    return values.reshape(shape).swapaxes(0, 1).reshape(values.shape)


def _heads(start: bool = False) -> tuple[Any, Any]:
    """Return how rows of value heads are reordered and put back. `start`: those of queries and keys
    precede them, in their own order."""

    def turned(config: Config, values: Array, *, undo: bool) -> Array:
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        count = keys if start else 0
        made = _tiled(config, values[count:], undo=undo)
        return np.concatenate([values[:count], made])

    return _same(turned)


def _columns() -> tuple[Any, Any]:
    def turned(config: Config, values: Array, *, undo: bool) -> Array:
        return _tiled(config, np.ascontiguousarray(values.T), undo=undo).T

    return _same(turned)


def _same(turned: Callable[..., Array]) -> tuple[Any, Any]:
    """Return a change of one tensor under the same name, and the way back."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        return {name: turned(config, values, undo=False)}

    def join(config: Config, values: Array) -> Array:
        return turned(config, values, undo=True)

    return cut, join


def _named(name: str) -> tuple[Any, Any]:
    """Return a change of a tensor's name alone, in a block."""

    def cut(config: Config, theirs: str, values: Array) -> Arrays:
        return {f"blk.{theirs.split('.layers.')[1].split('.')[0]}.{name}": values}

    def join(config: Config, values: Array) -> Array:
        return values

    return cut, join


_QWEN35 = (
    *((word, *_heads()) for word in ("A_log", "dt_bias", "in_proj_z", "in_proj_a", "in_proj_b")),
    ("in_proj_qkv", *_heads(start=True)),
    ("linear_attn.conv1d", *_heads(start=True)),
    ("linear_attn.out_proj", *_columns()),
)
_GEMMA4 = (
    ("experts.gate_up_proj", *_named("ffn_gate_up_exps.weight")),
    ("experts.down_proj", *_named("ffn_down_exps.weight")),
    ("router.scale", *_named("ffn_gate_inp.scale")),
    ("router.per_expert_scale", *_named("ffn_down_exps.scale")),
)
CUTS: dict[str, Any] = {
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "gemma4_text": _GEMMA4,
}
