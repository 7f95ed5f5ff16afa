"""Modelfile: what a Modelfile says, and the parameters that it may set.

Source: https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx, and the options of
docs/api.md there.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and (isinstance(value, bool) or str(value).lower() in _BOOLEANS):
        return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
    if kind in (int, float) and isinstance(value, str | int | float) and value is not True:
        try:
            number = float(value)
            if kind is float or number.is_integer():
                return kind(value) if isinstance(value, str) and kind is int else kind(number)
        except (ValueError, OverflowError):
            pass
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    raise ConfigError(
        f"{value!r} is not a value of {name}.", where=where, fix=f"write {words[kind]}."
    )


def example(role: str, content: str, where: str) -> ExampleMessage:
    """Return a message. Raises: ConfigError for another role"""
    if role.lower() not in ROLES:
        raise ConfigError(
            f'"{role}" is not a role of messages.', where=where, fix=f"use {', '.join(ROLES)}."
        )
    return ExampleMessage(role.lower(), content)
