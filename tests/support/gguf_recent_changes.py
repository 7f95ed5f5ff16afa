"""What llama.cpp's converters change in the tensors of families of 2025 and 2026, and the way back.

Shares nothing with the reader. `gguf_families` says what a table of cuts has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Config = Mapping[str, Any]

JOINING = {
    "eh_proj": "eh_proj",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head.norm": "shared_head_norm",
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}
"""What joins a drafting layer to the model -> GGUF's name of it."""


def drafting_name(config: Config, name: str) -> str | None:
    """Return the name of what joins a drafting block to the model, in architectures of which the
    package does not know it."""
    owner = name.rpartition(".")[0]
    found = next((ours for theirs, ours in JOINING.items() if owner.endswith(theirs)), None)
    if found is None:
        return None
    block = config["num_hidden_layers"] if name.startswith("mtp.") else name.split(".")[2]
    return f"blk.{block}.nextn.{found}.weight"


def with_tail(name: str) -> tuple[str, ...]:
    """Return the name of a tensor that GGUF calls a weight or a bias, and the checkpoint not."""
    tails = {"layer_scalar": ".weight", "expert_bias": ".bias", "sink_bias": ".weight"}
    return tuple(f"{name}{tail}" for end, tail in tails.items() if name.endswith(end))


def other_names(config: Config, name: str) -> tuple[str, ...]:
    """Return names under which the package may know a tensor of the checkpoint."""
    experts = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
    plain = name.replace("block_sparse_moe", "mlp")
    layer = f"model.layers.{config.get('num_hidden_layers')}."
    return name.removeprefix("model."), plain, experts, name.replace("mtp.layers.0.", layer)


def with_joined(config: Config, weights: Arrays) -> Arrays:
    """Return weights with queries, keys and values as one matrix, of a family that has such."""
    if config["gguf"] != "bailingmoe2":
        return weights
    found = {name: one for name, one in weights.items() if "self_attn.q_proj" not in name}
    for name in [name for name in weights if "self_attn.q_proj" in name]:
        parts = [name.replace("q_proj", f"{part}_proj") for part in "qkv"]
        block, leaf = name.split(".")[2], name.rpartition(".")[2]
        rows = [found.pop(part, weights[name]) for part in parts]
        found[f"blk.{block}.attn_qkv.{leaf}"] = np.concatenate(rows)
    return found


def without_joined(config: Config, meant: Arrays, weights: Arrays) -> Arrays:
    """Return the way back from `with_joined`."""
    found = {name: one for name, one in meant.items() if ".attn_qkv." not in name}
    for name in set(meant) - set(found):
        _, block, _, leaf = name.split(".")
        parts = [f"model.layers.{block}.self_attn.{part}_proj.{leaf}" for part in "qkv"]
        ends = np.cumsum([len(weights[part]) for part in parts])[:-1]
        found |= dict(zip(parts, np.split(meant[name], ends), strict=True))
    return found


def as_settings(weights: Mapping[str, Array]) -> Arrays:
    """Return the tensors whose numbers are settings in GGUF."""
    return {name: one for name, one in weights.items() if ".act_fn." in name}


def lists_of(weights: Mapping[str, Array]) -> dict[str, list[float]]:
    """Return such tensors as settings: a number for each block."""
    found: dict[str, list[float]] = {}
    for name in sorted(weights, key=lambda one: int(one.split(".layers.")[1].split(".")[0])):
        key = f"xielu.{name.rpartition('.')[2]}"
        found.setdefault(key, []).append(float(weights[name].item()))
    return found


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


def _latent_cut(config: Config, name: str, values: Array) -> Arrays:
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    keys, rest = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
    return {
        name.replace("kv_b_proj", "k_b_proj"): keys.swapaxes(1, 2),
        name.replace("kv_b_proj", "v_b_proj"): rest,
    }


def _latent_join(config: Config, keys: Array, rest: Array) -> Array:
    whole: Array = np.concatenate([keys.swapaxes(1, 2), rest], axis=1)
    return whole.reshape(-1, whole.shape[-1])


def _filters() -> tuple[Any, Any]:
    """Return how filters of channels are stored: [C, 1, K] as [1, C, 1, K]."""

    def cut(config: Config, name: str, values: Array) -> Arrays:
        return {name: values.reshape(1, -1, 1, values.shape[-1])}

    def join(config: Config, values: Array) -> Array:
        return values.reshape(-1, 1, values.shape[-1])

    return cut, join


LATENT_CUT = (("kv_b_proj", _latent_cut, _latent_join),)
CUTS: dict[str, Any] = {
    "glm_moe_dsa": LATENT_CUT,
    "kimi_linear": (*LATENT_CUT, ("_conv1d", *_filters())),
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "gemma4_text": _GEMMA4,
}
