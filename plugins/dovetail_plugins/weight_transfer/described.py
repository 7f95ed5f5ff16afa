"""Described: a tensor that is about to be sent, by name, type and shape. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail.errors import RequestError
from dovetail_plugins.load_formats._safetensors_header import TYPES

WORDS = {name: word for word, (name, _) in TYPES.items()}
"""torch's name of a type -> that of the safetensors format."""


def item_bytes(dtype: str) -> int:
    """Return the bytes of a number of a type."""
    return TYPES[WORDS[dtype]][1]


class Described(NamedTuple):
    """A tensor's name, torch's name of its type, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its numbers."""
        return math.prod(self.shape) * item_bytes(self.dtype)


def checked(name: str, dtype: str, shape: Sequence[int]) -> Described:
    """Return a description. Raises: RequestError for a type that files do not have"""
    found = Described(name, dtype.removeprefix("torch."), tuple(shape))
    if found.dtype not in WORDS:
        known = ", ".join(sorted(WORDS))
        raise RequestError(f'weights are not of type "{dtype}".', where=name, fix=f"use {known}.")
    return found


def announced_tensors(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> list[Described]:
    """Return what a trainer is about to send. Raises: RequestError if that cannot be"""
    counts = {"names": len(names), "dtypes": len(dtypes), "shapes": len(shapes)}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} {word}" for word, count in counts.items())
        fix = "give one of each for every tensor."
        raise RequestError(f"there are {said}.", where="names", fix=fix)
    if doubled := list(_doubled(names)):
        raise RequestError(f"{doubled[0]} is there twice.", where="names", fix="name it once.")
    return [checked(*one) for one in zip(names, dtypes, shapes, strict=True)]


def _doubled(names: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
