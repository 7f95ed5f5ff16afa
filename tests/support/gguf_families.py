"""What llama.cpp's converters change in checkpoints of some families, and how it is turned back.

Shares nothing with the reader. Arrays have the checkpoint's names, or GGUF's ("blk.N.") where the
package does not map these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from support import gguf_recent_changes

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Config = Mapping[str, Any]

MIXED_TWICE = ("mamba2", "falcon_h1", "granitemoehybrid", "nemotron_h")
"""Types with mixers of Mamba 2."""
ONE_MORE = ("nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Types whose norms are stored plus one."""
TURNED = ("llama", "granite", "granitemoe", "granitehybrid", "olmo", "smollm3", "arcee",
          "mistral3", "baichuan", "xverse", "deepseek", "deci", "bailingmoe")  # fmt: skip
"""Architectures whose rows of q and k are turned."""


def apart(config: Config, weights: Mapping[str, Array]) -> Arrays:
    """Return a checkpoint's weights as they stand in GGUF files."""
    found: Arrays = {}
    for name, values in weights.items():
        found |= _split(config, name, values)
    return {_renamed(name): _made(config, name, values) for name, values in found.items()}


def together(config: Config, weights: Mapping[str, Array], names: Mapping[str, Array]) -> Arrays:
    """Return what `apart` gave as the checkpoint has it, under its names and in its shapes."""
    found: Arrays = {}
    for name, values in names.items():
        parts = {part: weights[_renamed(part)] for part in _split(config, name, values)}
        parts = {part: _unmade(config, part, array) for part, array in parts.items()}
        found[name] = _joined(config, name, parts).reshape(values.shape)
    return found


def _renamed(name: str) -> str:
    return name.removesuffix(".dt_bias") + ".dt_proj.bias" if name.endswith(".dt_bias") else name


def _made(config: Config, name: str, values: Array) -> Array:
    """Return one tensor's numbers as they are stored."""
    groups = config.get("n_groups") or config.get("mamba_n_groups")
    if name.endswith(".A_log"):
        values = -np.exp(values)
    if config["model_type"] in MIXED_TWICE:
        if name.endswith((".A_log", ".D")):
            return values[:, None]
        if name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            return values.reshape(int(groups or 1), -1)
    if ".conv1d.weight" in name or ".conv.conv.weight" in name:
        return values.squeeze(1)
    return _scaled(config, name, values + _more(config, name))


def _unmade(config: Config, name: str, values: Array) -> Array:
    if name.endswith(".A_log"):
        return np.log(-values)
    return _scaled(config, name, values, undo=True) - _more(config, name)


def _more(config: Config, name: str) -> int:
    is_norm = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    is_norm = is_norm or ".pre_fc_norm_" in name
    return int(is_norm and config["model_type"] in ONE_MORE)


def _scaled(config: Config, name: str, values: Array, *, undo: bool = False) -> Array:
    """Return a matrix of Falcon-H1 with the multipliers in it."""
    if config["model_type"] != "falcon_h1":
        return values
    gate, down = config["mlp_multipliers"]
    before = config["attention_in_multiplier"]
    scales = {
        "embed_tokens.": config["embedding_multiplier"],
        "lm_head.": config["lm_head_multiplier"],
        "gate_proj.": gate,
        "down_proj.": down,
        "q_proj.": before,
        "k_proj.": before * config["key_multiplier"],
        "v_proj.": before,
        "o_proj.": config["attention_out_multiplier"],
        "mamba.out_proj.": config["ssm_out_multiplier"],
    }
    scale: Any = next((value for part, value in scales.items() if part in name), 1.0)
    if "mamba.in_proj." in name:
        inner = config["mamba_d_ssm"]
        state = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, state, state, config["mamba_n_heads"])
        scale = config["ssm_in_multiplier"] * np.repeat(config["ssm_multipliers"], sizes)[:, None]
    made: Array = (values / scale if undo else values * scale).astype(np.float32)
    return made


def _split(config: Config, name: str, values: Array) -> Arrays:
    """Return the tensors that one of the checkpoint's is in GGUF."""
    for word, cut, _ in _CUTS.get(config["model_type"], ()):
        if word in name:
            return cut(config, name, values)
    return {name: values}


def _joined(config: Config, name: str, parts: Arrays) -> Array:
    for word, _, join in _CUTS.get(config["model_type"], ()):
        if word in name:
            return join(config, *parts.values())
    (values,) = parts.values()
    return values


def _block(name: str, stem: str) -> str:
    return f"blk.{name.split('.layers.')[1].split('.')[0]}.{stem}.weight"


def _halves(suffix: str, *, is_turned: bool = False) -> tuple[Any, Any]:
    """Return how gate and up, joined along their outputs, are cut and joined. `is_turned`: they lie
    in the last axis."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        rows = values.swapaxes(-1, -2) if is_turned else values
        gate, up = np.split(rows, 2, axis=-2)
        return {_block(name, f"ffn_{w}{suffix}"): v for w, v in (("gate", gate), ("up", up))}

    def join(config: Config, gate: Array, up: Array) -> Array:
        rows: Array = np.concatenate([gate, up], axis=-2)
        return rows.swapaxes(-1, -2) if is_turned else rows

    return cut, join


def _down(suffix: str, *, is_turned: bool = False) -> tuple[Any, Any]:
    def cut(config: Config, name: str, values: Array) -> Arrays:
        return {_block(name, f"ffn_down{suffix}"): values.swapaxes(-1, -2) if is_turned else values}

    def join(config: Config, values: Array) -> Array:
        return values.swapaxes(-1, -2) if is_turned else values

    return cut, join


def _flat(stem: str, *, is_turned: bool = False) -> tuple[Any, Any]:
    """Return how the rows of all DBRX's experts are cut into matrices, and joined again."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        rows = values.reshape(config["ffn_config"]["moe_num_experts"], -1, values.shape[-1])
        block = name.split(".blocks.")[1].split(".")[0]
        return {f"blk.{block}.{stem}.weight": rows.swapaxes(1, 2) if is_turned else rows}

    def join(config: Config, values: Array) -> Array:
        rows = values.swapaxes(1, 2) if is_turned else values
        return rows.reshape(-1, rows.shape[-1])

    return cut, join


def _delta_sizes(config: Config) -> tuple[int, list[int]]:
    """Return the key heads, and where the rows of one's q, k, v end."""
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    return heads, [key, 2 * key, 2 * key + value]


def _delta_cut(config: Config, name: str, values: Array) -> Arrays:
    heads, ends = _delta_sizes(config)
    by_head = values.reshape(heads, -1, values.shape[-1])
    q, k, v, z = (p.reshape(-1, values.shape[-1]) for p in np.split(by_head, ends, axis=1))
    return {_block(name, "attn_qkv"): np.concatenate([q, k, v]), _block(name, "attn_gate"): z}


def _delta_join(config: Config, qkv: Array, z: Array) -> Array:
    heads, ends = _delta_sizes(config)
    key = heads * ends[0]
    parts = [*np.split(qkv, [key, 2 * key]), z]
    rows = [part.reshape(heads, -1, part.shape[-1]) for part in parts]
    joined: Array = np.concatenate(rows, axis=1).reshape(-1, z.shape[-1])
    return joined


def _groups_cut(config: Config, name: str, values: Array) -> Arrays:
    """Cut the rows of queries, keys and values, which lie group by group."""
    heads, groups = _heads(config)
    rows = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
    parts = (rows[:, :-2], rows[:, -2], rows[:, -1])
    return {name: np.concatenate([p.reshape(-1, *values.shape[1:]) for p in parts])}


def _groups_join(config: Config, values: Array) -> Array:
    heads, groups = _heads(config)
    size = len(values) // (heads + 2 * groups)
    q, k, v = np.split(values, [heads * size, (heads + groups) * size])
    shaped = [part.reshape(groups, -1, size, *values.shape[1:]) for part in (q, k, v)]
    joined: Array = np.concatenate(shaped, axis=1).reshape(values.shape)
    return joined


def _heads(config: Config) -> tuple[int, int]:
    heads = config.get("num_attention_heads") or config["n_head"]
    if config["model_type"] != "falcon":
        return heads, heads
    return heads, config["num_kv_heads"] if config["new_decoder_architecture"] else 1


_GROUPS = (("query_key_value", _groups_cut, _groups_join),)
_GRANITE = (
    ("block_sparse_moe.input_linear", *_halves("_exps")),
    ("block_sparse_moe.output_linear", *_down("_exps")),
    ("shared_mlp.input_linear", *_halves("_shexp")),
    ("shared_mlp.output_linear", *_down("_shexp")),
)
_CUTS: dict[str, tuple[tuple[str, Callable[..., Arrays], Callable[..., Array]], ...]] = {
    "deepseek_v2": gguf_recent_changes.LATENT_CUT,
    "deepseek_v3": gguf_recent_changes.LATENT_CUT,
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "dbrx": (
        ("experts.mlp.w1", *_flat("ffn_gate_exps")),
        ("experts.mlp.v1", *_flat("ffn_up_exps")),
        ("experts.mlp.w2", *_flat("ffn_down_exps", is_turned=True)),
    ),
    "llama4_text": (
        ("experts.gate_up_proj", *_halves("_exps", is_turned=True)),
        ("experts.down_proj", *_down("_exps", is_turned=True)),
    ),
    "qwen3_next": (("in_proj_qkvz", _delta_cut, _delta_join),),
    "bloom": _GROUPS,
    "falcon": _GROUPS,
    "gpt_neox": _GROUPS,
    **gguf_recent_changes.CUTS,
}
"""Model type -> part of a name, how such a tensor is cut, how it is joined again."""
