"""Which layers a checkpoint's config means: it names matrices that are fused or stacked here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from dovetail.errors import ConfigError

Found = TypeVar("Found")

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv": ("q", "k", "v"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
"""A fused layer's last name -> the checkpoint's names of its parts."""


EXPERTS = "experts"
LETTERS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""The checkpoints' names of an expert's matrices in a `block_sparse_moe`."""


def parts_of(name: str) -> Iterator[str]:
    """Yield a layer's name and, if it is fused or stacked, the names of its parts."""
    yield name
    yield from fused_parts(name)


def fused_parts(name: str) -> tuple[str, ...]:
    """Return the checkpoint's names of the matrices in a fused layer, the first expert's for
    experts; nothing for a layer that is one matrix."""
    head, _, leaf = name.rpartition(".")
    leaves = FUSED.get(leaf, ())
    if head.rpartition(".")[2] == EXPERTS:
        leaves = leaves or (leaf,)
        if "block_sparse_moe" in head:
            leaves = tuple(LETTERS[leaf] for leaf in leaves)
        head = f"{head}.0"
    return tuple(f"{head}.{part}" if head else part for part in leaves)


def one_for_parts(
    name: str, look_up: Callable[[str], Found], default: Found, *, where: str
) -> Found:
    """Return a config's setting for a layer, which must be the same for all its parts.

    A config may name the parts or, if the checkpoint itself is fused, the layer.
    Raises: ConfigError when parts differ: they are one matrix here.
    """
    parts = [look_up(part) for part in fused_parts(name)]
    if not parts or all(one == default for one in parts):
        return look_up(name)
    if any(one != parts[0] for one in parts):
        raise ConfigError(
            f"{', '.join(fused_parts(name))} have different formats, but are fused into one layer.",
            where=where,
            fix="use a checkpoint that stores the parts of a fused layer in the same format.",
        )
    return parts[0]


Spelled = Callable[[str, str], Sequence[str]]
"""A layer's name and a pattern -> the names of the layer to try that on."""


def own_name(name: str, pattern: str) -> tuple[str]:
    """Return only the name itself."""
    return (name,)


def is_listed(name: str, patterns: Sequence[str], spelled: Spelled = own_name) -> bool:
    """Return whether a list names the layer: by its whole name, by the name of a container, by its
    last words, by either with "*" for anything within, or by an expression that begins with "re:".
    `spelled` gives the layer's other names."""
    return any(
        _matches(one, pattern)
        for part in parts_of(name)
        for pattern in patterns
        for one in spelled(part, pattern)
    )


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    glob = pattern.strip("*.")
    if "*" in glob:
        return any(fnmatchcase(name, form) for form in (glob, f"{glob}.*", f"*.{glob}"))
    words = pattern.replace(".*", "").replace("*", "").strip(".")
    return bool(words) and (
        name == words
        or name.startswith(f"{words}.")
        or name.endswith(f".{words}")
        or f".{words}." in f".{name}."
    )
