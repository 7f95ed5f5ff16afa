"""Pass 1: limits the size and depth of a schema, so that later passes may recurse over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.rewriting.tree import escaped

MAX_DEPTH = 128
"""The depth of nested values; a nested schema takes one or two levels."""
MAX_VALUES = 100_000


def check_bounds(schema: Any) -> None:
    """Raise InvalidConstraint for a schema with too many values or nested too deep."""
    pending: list[tuple[Any, int, tuple[Any, ...]]] = [(schema, 0, ())]
    count = 0
    while pending:
        value, depth, path = pending.pop()
        count += 1
        if count > MAX_VALUES:
            raise InvalidConstraint(f"a schema has at most {MAX_VALUES:,} values")
        if depth > MAX_DEPTH:
            what = f"schemas nested more than {MAX_DEPTH // 2} deep are not supported"
            raise InvalidConstraint(what, _pointer(path))
        if isinstance(value, Mapping):
            pending += [(inner, depth + 1, (path, name)) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [(inner, depth + 1, (path, number)) for number, inner in enumerate(value)]


def _pointer(path: tuple[Any, ...]) -> str:
    names: list[str] = []
    while path:
        path, name = path
        names.append(escaped(str(name)))
    return "".join(f"/{name}" for name in reversed(names))
