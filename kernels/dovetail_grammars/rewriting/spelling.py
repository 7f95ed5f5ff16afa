"""Pass 3: checks the type of every keyword's value, and converts to the spelling of draft 2020-12.

Source: https://json-schema.org/draft/2020-12 (validation), and the sections "changes" of drafts 4
to 2020-12: bounds excluded by `true` (4), tuples in `items` with `additionalItems` (4 to 2019-09),
`dependencies` (3 to 7), members required by `true` (3), the type "any" (3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.keywords import words
from dovetail_grammars.rewriting.tree import ORIGIN, Schema, mapped, origin

_TYPES = words("string number integer boolean null object array")
_COUNTS = words(
    "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains"
)
MOST_COUNTED = 10**9
"""No answer has this many letters, items or members."""
_BOUNDS = words("minimum maximum exclusiveMinimum exclusiveMaximum")
_OF_NUMBERS = _BOUNDS | words("enum const multipleOf")
CERTAIN_DIGITS = 15
"""Every reader parses decimals with at most this many digits exactly."""


def spelled(schema: Any) -> Any:
    """Return a schema in the latest spelling. Raises: InvalidConstraint for a wrong type"""
    if not isinstance(schema, Mapping):
        return schema
    node = dict(schema)
    for change in (_members, _bounds, _tuple, _dependencies, _type, _constant):
        node = change(node)
    for keyword in [k for k in node if k in _OF_NUMBERS]:
        is_bound = keyword in _BOUNDS
        if not _has_only(_is_certain_bound if is_bound else _is_certain, node[keyword]):
            what = "a decimal has more digits than 64 bits of floating point hold"
            raise InvalidConstraint(what, f"{origin(node)}/{keyword}")
    for keyword in [k for k in node if k in RIGHT]:
        is_right, expected = RIGHT[keyword]
        at = f"{origin(node)}/{keyword}"
        if keyword in _COUNTS and isinstance(node[keyword], float):
            node[keyword] = _whole(node[keyword])
        if not is_right(node[keyword]):
            raise InvalidConstraint(f'the keyword "{keyword}" takes {expected}', at)
        if keyword in _COUNTS and node[keyword] > MOST_COUNTED:
            if keyword.startswith("min"):
                raise InvalidConstraint(f'no answer is as long as "{keyword}" asks for', at)
            del node[keyword]
    return mapped(node, spelled)


def _constant(node: Schema) -> Schema:
    """Convert `const` to an `enum` with one value."""
    for keyword in ("const", "enum"):
        if keyword in node and not _has_only(math.isfinite, node[keyword]):
            what = "a number in it is not finite, or too large for 64 bits of floating point"
            raise InvalidConstraint(what, f"{origin(node)}/{keyword}")
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const")]
    return node


def _has_only(is_right: Callable[[float], bool], value: Any) -> bool:
    """Return whether every decimal within a value passes `is_right`."""
    match value:
        case float():
            return is_right(value)
        case list():
            return all(_has_only(is_right, inner) for inner in value)
        case dict():
            return all(_has_only(is_right, inner) for inner in value.values())
    return True


def _is_certain(value: float) -> bool:
    """Return whether a decimal is exact. One with more digits may have been rounded to a whole
    number when it was parsed."""
    digits = f"{value!r}".partition("e")[0].replace(".", "").strip("-0")
    return abs(value) < 2**53 or len(digits) <= CERTAIN_DIGITS


def _is_certain_bound(value: float) -> bool:
    """Return whether it is exact, or the limit of a number type, which generators write rounded."""
    return abs(value) >= 2**63 or _is_certain(value)


def _whole(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) else value


def _members(node: Schema) -> Schema:
    """Convert members that are marked as required themselves (draft 3)."""
    given = node.get("properties")
    if not isinstance(given, Mapping):
        return node
    needed = [n for n, m in given.items() if isinstance(m, Mapping) and m.get("required") is True]
    members = {
        name: {k: v for k, v in member.items() if k != "required"}
        if isinstance(member, Mapping) and isinstance(member.get("required"), bool)
        else member
        for name, member in given.items()
    }
    known = node.get("required")
    if needed and isinstance(known, list | bool | None):
        others = known if isinstance(known, list) else []
        node["required"] = [*others, *(n for n in needed if n not in others)]
    node["properties"] = members
    return node


def _bounds(node: Schema) -> Schema:
    """Convert bounds excluded by `true` (draft 4)."""
    for bound, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(excluded), bool):
            is_excluded = node.pop(excluded)
            if is_excluded and bound in node:
                node[excluded] = node.pop(bound)
    return node


def _tuple(node: Schema) -> Schema:
    """Convert a list in `items`, followed by `additionalItems` (drafts 4 to 2019-09)."""
    if isinstance(node.get("items"), list):
        heads = node.pop("items")
        rest = node.pop("additionalItems", True)
        node["prefixItems"] = heads
        node["items"] = rest
        if not heads:
            del node["prefixItems"]
    node.pop("additionalItems", None)
    return node


def _dependencies(node: Schema) -> Schema:
    """Split names and schemas in one keyword (drafts 3 to 7)."""
    given = node.get("dependencies")
    if not isinstance(given, Mapping):
        return node
    del node["dependencies"]
    for name, wanted in given.items():
        if isinstance(wanted, str):
            wanted = [wanted]  # draft 3
        keyword = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
        node[keyword] = {**node.get(keyword, {}), name: wanted}
    return node


def _type(node: Schema) -> Schema:
    """Convert types that are schemas, and the type "any" (draft 3)."""
    given = node.get("type")
    if given == "any" or (isinstance(given, list) and "any" in given):
        del node["type"]
    elif isinstance(given, list) and any(isinstance(v, Mapping) for v in given):
        at = f"{origin(node)}/type"
        kinds = [v if isinstance(v, Mapping) else {ORIGIN: at, "type": v} for v in given]
        del node["type"]
        node["allOf"] = [*node.get("allOf", ()), {ORIGIN: at, "anyOf": kinds}]
    return node


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and (isinstance(value, int) or math.isfinite(value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | Mapping)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, str) and v in _TYPES for v in value)
    return isinstance(value, str) and value in _TYPES


def _is_schemas(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_schema, value.values()))


def _is_schema_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


RIGHT: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number, not negative")),
    **dict.fromkeys(_BOUNDS, (_is_number, "a number")),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above zero"),
    "required": (_is_names, "a list of names"),
    "type": (_is_type, "the name of a type or a list of such"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "pattern": (_is_text, "a regular expression"),
    "format": (_is_text, "the name of a format"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (
        lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
        "an object of lists of names",
    ),
    **dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas"),
        (_is_schemas, "an object of schemas"),
    ),
    "dependencies": (_is_schemas, "an object of schemas or names"),
    **dict.fromkeys(
        ("allOf", "anyOf", "oneOf", "prefixItems"), (_is_schema_list, "a list of schemas")
    ),
    **dict.fromkeys(
        words(
            "items additionalProperties unevaluatedProperties unevaluatedItems contains "
            "propertyNames not if then else"
        ),
        (_is_schema, "a schema"),
    ),
}
"""Keyword -> whether its value has the right type, and a description of that type."""
