"""Which layers a checkpoint leaves unquantized: its lists name matrices that are fused here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv": ("q", "k", "v"),
}
"""A fused layer's last name -> the checkpoint's names of its parts."""


def parts_of(name: str) -> Iterator[str]:
    """Yield a layer's name and, where it is fused, the names of its parts."""
    yield name
    head, _, leaf = name.rpartition(".")
    for part in FUSED.get(leaf, ()):
        yield f"{head}.{part}" if head else part


def is_listed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a list names the layer: by its whole name, by the name of something that
    holds it, by its last words, or by an expression that begins with "re:"."""
    return any(_matches(part, pattern) for part in parts_of(name) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    words = pattern.replace(".*", "").replace("*", "").strip(".")
    return bool(words) and (
        name == words
        or name.startswith(f"{words}.")
        or name.endswith(f".{words}")
        or f".{words}." in f".{name}."
    )
