"""Settings of draft checkpoints under the usual names of config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec

LLAMA, LATENT = "LlamaForCausalLM", "DeepseekV3ForCausalLM"
_PUBLISHED = {
    **dict.fromkeys(("EAGLEModel", "Eagle3DraftModel", "Eagle3Speculator"), LLAMA),
    **dict.fromkeys(
        (f"Eagle3{name}ForCausalLM" for name in ("MiniMaxM2", "Qwen2_5vl", "Qwen3vl")), LLAMA
    ),
    **dict.fromkeys((f"Eagle3DeepseekV{n}ForCausalLM" for n in (2, 3)), LATENT),
}
"""Classes of draft heads whose names do not say which family their layers are from: those of EAGLE
3 are named after the model that they draft for, and have Llama's layers, or latents."""
_AT_ONCE = ("PEagle", "Peagle")
_NESTED = ("model", "transformer_layer_config")
"""Keys of config.json with the settings of the layer."""
_WORDS = ("Eagle3", "Eagle")


def of_family(raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
    """Return the settings of a head with a family's own layers: the class is the family's.

    Outer settings override nested ones. Raises: ConfigError for a head that guesses all places at
    once.
    """
    found = on_one_level(raw, _NESTED)
    names = found.get("architectures")
    name = str(names[0] if isinstance(names, list) and names else target.architecture)
    if name.startswith(_AT_ONCE):
        raise ConfigError(
            f"a head of the class {name} guesses all places of a draft in one pass, from a token "
            "that masks them.",
            where="--speculative-config.model: the architectures of its config.json",
            fix="use a head of EAGLE 3, which guesses one after the other.",
        )
    plain = name
    for word in _WORDS:
        plain = plain.replace(word, "")
    found["architectures"] = [_PUBLISHED.get(name, plain)]
    found.setdefault("vocab_size", target.vocab_size)
    return found


def on_one_level(raw: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings with those nested under `keys`, which outer ones override."""
    nested = (raw.get(key) for key in keys)
    found: dict[str, Any] = {}
    for part in (*(one for one in nested if isinstance(one, Mapping)), raw):
        found |= {key: value for key, value in part.items() if key not in keys}
    return found


def beside(target: ModelSpec, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a checkpoint without attention layers; missing ones are the
    target's."""
    usual = {
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_size,
    }
    found = {**usual, **raw}
    return {**found, "num_hidden_layers": 1, "architectures": [name]}


def count(raw: Mapping[str, Any], names: tuple[str, ...], what: str) -> int:
    """Return the first of some settings that there is, a count of at least 1. Raises:
    ConfigError"""
    value = next((raw[name] for name in names if raw.get(name) is not None), None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{' or '.join(names)} is to say {what}, and is {value!r}.",
            where="--speculative-config.model: its config.json",
            fix="check that the folder holds a checkpoint of this method.",
        )
    return value


def check_length(max_draft_tokens: int, num_heads: int) -> None:
    """Raise ConfigError for drafts longer than a checkpoint has heads for."""
    if max_draft_tokens > num_heads:
        raise ConfigError(
            f"the checkpoint has heads for {num_heads} tokens ahead, not for {max_draft_tokens}.",
            where="--speculative-config.num_speculative_tokens",
            fix=f"use at most {num_heads}.",
        )
