"""both(one, other): merges two nodes into one for the values that are valid under both.

The nodes have no `$ref` or `allOf` of their own. Schemas within them are combined with allOf, and
merged later. Source: https://json-schema.org/draft/2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.keywords import words
from dovetail_grammars.regex import written
from dovetail_grammars.rewriting.automaton import Effort, Undecided, searched, shared
from dovetail_grammars.rewriting.tree import KINDS
from dovetail_grammars.rewriting.values import same

MAX_BRANCHES = 64
_OF_OBJECTS = words("properties additionalProperties")
_NO_TEXT = [kind for kind in KINDS if kind != "string"]
_OF_ARRAYS = words("prefixItems items")


def both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema for the values that are valid under both. Raises: InvalidConstraint"""
    merged = dict(one)
    for keyword, value in other.items():
        if keyword in _OF_OBJECTS or keyword in _OF_ARRAYS:
            continue
        if keyword not in merged or merged[keyword] == value:
            merged[keyword] = value
        elif keyword == "pattern":
            pattern = _both_patterns(merged[keyword], value)
            if pattern is None:
                merged["type"] = _both_types(merged.get("type", KINDS), _NO_TEXT)
            else:
                merged["pattern"] = pattern
        elif keyword in _JOINED:
            merged[keyword] = _JOINED[keyword](merged[keyword], value)
        else:
            raise InvalidConstraint(f'two values of "{keyword}" exclude each other')
    return merged | _both_objects(one, other) | _both_arrays(one, other)


def joined(one: Any, other: Any) -> Any:
    """Return a schema for the values that are valid under both."""
    if one is True or one == {}:
        return other
    if other is True or other == {} or one == other:
        return one
    return False if one is False or other is False else {"allOf": [one, other]}


def _both_objects(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of both; one that a node does not list meets additionalProperties."""
    sides = (one, other)
    members = {
        name: joined(*(_member(side, name) for side in sides))
        for name in {**one.get("properties", {}), **other.get("properties", {})}
    }
    merged: dict[str, Any] = {"properties": members} if members else {}
    others = [side["additionalProperties"] for side in sides if "additionalProperties" in side]
    if others:
        merged["additionalProperties"] = joined(*others) if len(others) == 2 else others[0]
    return merged


def _member(node: Mapping[str, Any], name: str) -> Any:
    listed = node.get("properties", {})
    return listed[name] if name in listed else node.get("additionalProperties", True)


def _both_arrays(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged items of two nodes: the first ones by position, the rest from `items`."""
    size = max(len(side.get("prefixItems", ())) for side in (one, other))
    heads = [joined(_item(one, at), _item(other, at)) for at in range(size)]
    rest = joined(one.get("items", True), other.get("items", True))
    merged: dict[str, Any] = {"prefixItems": heads} if heads else {}
    return merged | ({"items": rest} if "items" in one or "items" in other else {})


def _item(node: Mapping[str, Any], at: int) -> Any:
    heads = node.get("prefixItems", ())
    return heads[at] if at < len(heads) else node.get("items", True)


def _both_patterns(one: str, other: str) -> str | None:
    """Return the pattern of texts that match both, None if there are none."""
    try:
        found = shared(searched(one), searched(other), Effort())
    except Undecided as error:
        raise InvalidConstraint(f"two patterns cannot be taken together: {error}") from error
    return None if found is None else f"^(?:{written(found)})$"


def _both_types(one: Any, other: Any) -> list[str]:
    def kinds(given: Any) -> set[str]:
        names = {given} if isinstance(given, str) else set(given)
        return names | {"integer"} if "number" in names else names

    found = kinds(one) & kinds(other)
    return sorted(found - {"integer"} if "number" in found else found)


def _both_branches(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) * len(other) > MAX_BRANCHES:
        raise InvalidConstraint("there are too many branches of anyOf beside each other")
    return [joined(a, b) for a in one for b in other]


_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _both_types,
    "required": lambda a, b: sorted({*a, *b}),
    "minimum": max,
    "exclusiveMinimum": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "enum": lambda a, b: [v for v in a if any(same(v, w) for w in b)],
    "anyOf": _both_branches,
}
