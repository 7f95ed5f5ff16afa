"""has_values(schema, least): whether a schema certainly has that many different values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail_grammars.rewriting.automaton import Undecided, has_texts, searched
from dovetail_grammars.rewriting.context import MAX_NESTED, Context
from dovetail_grammars.rewriting.tree import Schema, kinds_of

MANY = 1000
"""Every format has more texts than this."""


def has_values(schema: Any, minimum: int, context: Context, depth: int = 0) -> bool:
    """Return whether a schema certainly has `minimum` different values."""
    if depth > MAX_NESTED:
        return False
    values = context.values(schema)
    if values is not None:
        return len({repr(value) for value in values}) >= minimum
    node = _as_one(schema, context)
    if node is None:
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            rest = set(node) - {keyword, "type", "$comment", "$defs"}
            return not rest and any(
                has_values(branch, minimum, context, depth + 1) for branch in node[keyword]
            )
    if {"not", "if", "const", "enum"} & set(node):
        return False
    return any(_has_of_kind(kind, node, minimum, context, depth) for kind in kinds_of(node))


def _as_one(schema: Any, context: Context) -> Schema | None:
    """Return all parts of a schema as one node, None if they have conflicting keywords."""
    merged: Schema = {}
    for part in context.parts(schema):
        if part is False:
            return None
        for keyword, value in part.items() if isinstance(part, Mapping) else ():
            if keyword in ("$ref", "allOf", "$comment", "$defs"):
                continue
            if merged.setdefault(keyword, value) != value:
                return None
    return merged


def _has_of_kind(kind: str, node: Schema, minimum: int, context: Context, depth: int) -> bool:
    match kind:
        case "string":
            return _has_texts(node, minimum, context)
        case "number":
            return _has_numbers(node, minimum)
        case "object":
            return _has_objects(node, minimum, context, depth)
        case "array":
            items = node.get("items", True)
            is_empty = node.get("maxItems") == 0 or "prefixItems" in node
            is_plain = not is_empty and "contains" not in node and not node.get("uniqueItems")
            return is_plain and has_values(items, minimum, context, depth + 1)
    return False


def _has_texts(node: Schema, minimum: int, context: Context) -> bool:
    if "format" in node:
        return "pattern" not in node and "maxLength" not in node and minimum <= MANY
    size = node.get("maxLength", math.inf)
    if "pattern" not in node:
        return bool(size > 0 and (size > 9 or 64**size >= minimum))
    if "minLength" in node or "maxLength" in node:
        return False
    try:
        return has_texts(searched(node["pattern"]), minimum, context.effort)
    except Undecided:
        return False


def _has_numbers(node: Schema, minimum: int) -> bool:
    lows = [Fraction(str(node[w])) for w in ("minimum", "exclusiveMinimum") if w in node]
    highs = [Fraction(str(node[w])) for w in ("maximum", "exclusiveMaximum") if w in node]
    if not lows or not highs:
        return True
    return (min(highs) - max(lows)) / Fraction(str(node.get("multipleOf", 1))) - 2 >= minimum


def _has_objects(node: Schema, minimum: int, context: Context, depth: int) -> bool:
    """Return whether some single member has `minimum` values."""
    if {"propertyNames", "dependentSchemas", "patternProperties"} & set(node):
        return False
    members = node.get("properties", {})
    if "maxProperties" in node and node["maxProperties"] < 1 + len(node.get("required", ())):
        return False
    if any(members.get(name, True) is False for name in node.get("required", ())):
        return False
    inner = [*members.values(), node.get("additionalProperties", True)]
    return any(
        part is not False and has_values(part, minimum, context, depth + 1) for part in inner
    )
