"""Settings of draft checkpoints under the usual names of config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec

_PUBLISHED = {"EAGLEModel": "LlamaForCausalLM", "Eagle3DraftModel": "LlamaForCausalLM"}
"""Classes of draft heads whose names do not say which family their layers are from."""
_WORDS = ("Eagle3", "Eagle")


def of_family(raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
    """Return the settings of a head with a family's own layers: the class is the family's.

    Outer settings override nested ones ("model").
    """
    nested = raw.get("model")
    found = {**(nested if isinstance(nested, Mapping) else {}), **raw}
    found.pop("model", None)
    names = found.get("architectures")
    name = names[0] if isinstance(names, list) and names else target.architecture
    for word in _WORDS:
        name = str(name).replace(word, "")
    found["architectures"] = [_PUBLISHED.get(name, name)]
    found.setdefault("vocab_size", target.vocab_size)
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
