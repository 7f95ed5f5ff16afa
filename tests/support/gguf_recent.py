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
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen35": ("Qwen3_5ForCausalLM", DELTA, {**WIDE, **WIDE_DELTA}),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", DELTA, {**WIDE, **EXPERTS, **WIDE_DELTA}),
}
ARCHITECTURES = {
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
}
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


SETTINGS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "qwen3_5_text": _qwen35,
    "qwen3_5_moe_text": _qwen35,
}


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


_QWEN35 = (
    *((word, *_heads()) for word in ("A_log", "dt_bias", "in_proj_z", "in_proj_a", "in_proj_b")),
    ("in_proj_qkv", *_heads(start=True)),
    ("linear_attn.conv1d", *_heads(start=True)),
    ("linear_attn.out_proj", *_columns()),
)
CUTS: dict[str, Any] = {"qwen3_5_text": _QWEN35, "qwen3_5_moe_text": _QWEN35}
