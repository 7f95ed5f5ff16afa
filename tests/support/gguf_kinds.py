"""Kind: how the projector's file of a family, and that of its text model, are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support.gguf_files import Array

Tensors = Iterator[tuple[str, Array]]
Keys = Callable[[Any, dict[str, Any], dict[str, Any]], None]
"""Adds settings, given the writer, config.json and the processor's settings."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a family is written: the text model's class and where its weights are, the projector's
    type, its further settings, what is changed in its tensors, and in those of the text model."""

    text: str
    text_class: str
    type: str
    keys: Keys
    changes: Callable[[dict[str, Any], str, Array], Tensors] = lambda config, name, values: iter(
        [(name, values)]
    )
    text_changes: Callable[[dict[str, Any], str, Array], Array] = lambda config, name, values: (
        values
    )
    part: str = "vision"
    parts: bool = False
    """The settings name the type of each of several projectors."""
