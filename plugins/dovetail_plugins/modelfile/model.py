"""Modelfile: what a Modelfile says, and the parameters that it may set.

Source: https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx, and the options of
docs/api.md there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError

ROLES = ("system", "user", "assistant")
STOP = "stop"
KINDS: Mapping[str, type] = {
    **dict.fromkeys(
        (
            *("num_ctx", "num_predict", "num_keep", "num_batch", "num_gpu", "main_gpu"),
            *("num_thread", "draft_num_predict", "seed", "top_k", "repeat_last_n", "mirostat"),
        ),
        int,
    ),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "min_p", "typical_p", "tfs_z", "repeat_penalty"),
            *("presence_penalty", "frequency_penalty", "mirostat_tau", "mirostat_eta"),
        ),
        float,
    ),
    **dict.fromkeys(
        (
            *("low_vram", "vocab_only", "use_mmap", "use_mlock", "numa", "f16_kv"),
            *("penalize_newline", "logits_all", "embedding_only"),
        ),
        bool,
    ),
    STOP: str,
}
"""The type of each parameter; `stop` may be set several times."""
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class ExampleMessage:
    """A message that every conversation begins with."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """A model by reference, with its settings. `base` is a name or a path; `projectors` are further
    files of it. `parameters` has a value of its type for each name (a tuple of texts for `stop`).
    `quantize` is only in requests. Empty texts and tuples: not set."""

    base: str
    projectors: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    system: str = ""
    adapters: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    messages: tuple[ExampleMessage, ...] = ()
    requires: str = ""
    quantize: str = ""


def parameter(name: str, value: Any, where: str) -> Any:
    """Return the value of a parameter, from text or JSON. Raises: ConfigError"""
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigError(
            f'there is no parameter "{name}".', where=where, fix=f"use some of {', '.join(KINDS)}."
        )
    reader, words = _READERS[kind]
    found = reader(value)
    if found is None:
        raise ConfigError(
            f"{value!r} is not a value of {name}.", where=where, fix=f"write {words}."
        )
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is None or not number.is_integer():
        return None
    digits = str(value).lstrip("+-")
    return int(value) if digits.isdecimal() else int(number)


def _boolean(value: Any) -> bool | None:
    return _BOOLEANS.get(str(value).lower())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_READERS: Mapping[type, tuple[Callable[[Any], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (_boolean, "true or false"),
    str: (_text, "a text"),
}


def example(role: str, content: str, where: str) -> ExampleMessage:
    """Return a message. Raises: ConfigError for another role"""
    if role.lower() not in ROLES:
        raise ConfigError(
            f'"{role}" is not a role of messages.', where=where, fix=f"use {', '.join(ROLES)}."
        )
    return ExampleMessage(role.lower(), content)
