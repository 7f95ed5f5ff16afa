"""Pass 4: drops keywords that cannot make a value invalid.

These are keywords for types other than the node's, bounds that every value meets, formats that are
annotations (all unknown names, since the format vocabulary does not assert those), and `then`
without `if`. Source: https://json-schema.org/draft/2020-12/json-schema-validation (6, 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail_grammars.json_formats import BOUNDS, FORMATS, is_bound
from dovetail_grammars.keywords import words
from dovetail_grammars.regex_reader import parse
from dovetail_grammars.rewriting.automaton import Effort, Undecided, are_disjoint, searched
from dovetail_grammars.rewriting.tree import (
    KIND_OF,
    KINDS,
    ORIGIN,
    Schema,
    below,
    is_any,
    kinds_of,
    mapped,
    origin,
)

_FROM_ZERO = words("minLength minItems minProperties")
_EMPTY = words("properties patternProperties dependentRequired dependentSchemas required")
_OF_ANYTHING = words("items propertyNames unevaluatedProperties unevaluatedItems")
_ASKING = words("unevaluatedProperties unevaluatedItems")
_EVALUATING = words(
    "items contains minContains if then else anyOf unevaluatedProperties unevaluatedItems"
)
"""Keywords that evaluate members and items, even if they allow every value."""

MAX_COMPARED = 3_000
"""The work limit, in parts of expressions, for comparing a pattern with a format."""
REACH = 10**38
"""Bounds of numbers beyond this are narrowed: longer numbers are never written here, and generators
write the limits of their types as bounds."""


def effective(schema: Any) -> Any:
    """Return a schema without keywords that have no effect."""
    protected = _EVALUATING if _asks_what_is_evaluated(schema) else frozenset()
    return _effective(schema, protected)


def _asks_what_is_evaluated(schema: Any) -> bool:
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            if any(not is_any(node.get(keyword, True)) for keyword in _ASKING):
                return True
            pending += [inner for _, inner in below(node)]
    return False


def _effective(schema: Any, protected: frozenset[str]) -> Any:
    """Return a schema without keywords that have no effect; `protected` keywords always stay."""
    if not isinstance(schema, Mapping):
        return schema
    node = mapped(dict(schema), lambda inner: _effective(inner, protected))
    kinds = kinds_of(node)
    for keyword in list(node):
        is_of_others = KIND_OF.get(keyword, next(iter(kinds), "")) not in kinds
        if is_of_others or (keyword not in protected and _is_idle(node, keyword)):
            del node[keyword]
    if "format" in node:
        node = _format(node, kinds)
    if is_any(node.get("not")) or any(part is False for part in node.get("allOf", ())):
        return False
    if "allOf" in node:
        node["allOf"] = [part for part in node["allOf"] if not is_any(part)]
    return {k: v for k, v in node.items() if not (k == "allOf" and not v)}


def _is_idle(node: Schema, keyword: str) -> bool:
    """Return whether a keyword has no effect in its node."""
    value = node[keyword]
    if keyword in _FROM_ZERO or keyword in _EMPTY:
        return not value
    if keyword in _OF_ANYTHING:
        return is_any(value)
    match keyword:
        case "uniqueItems" | "not":
            return value is False
        case "if":
            return is_any(node.get("then", True)) and is_any(node.get("else", True))
        case "then" | "else":
            return "if" not in node
        case "minContains" | "maxContains":
            return "contains" not in node
        case "contains":
            return node.get("minContains") == 0 and "maxContains" not in node
        case "multipleOf":
            return _is_whole(node) and Fraction(1) % Fraction(str(value)) == 0
        case "anyOf":
            return any(map(is_any, value))
    return False


def _is_whole(node: Schema) -> bool:
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or ["number"]
    return "number" not in kinds and "integer" in kinds


def _format(node: Schema, kinds: frozenset[str]) -> Schema:
    """Return a node with its format enforced or dropped; next to a pattern it moves to allOf."""
    if is_bound(node):
        return node
    rest = {k: v for k, v in node.items() if k != "format"}
    if node["format"] in BOUNDS and "number" in kinds:
        minimum, maximum = BOUNDS[node["format"]]
        others = [kind for kind in KINDS if kind != "number"]
        bounds = {"type": [*others, "integer"], "minimum": minimum, "maximum": maximum}
        part = {ORIGIN: origin(node), **bounds}
        return {**rest, "allOf": [*rest.get("allOf", ()), part]}
    if node["format"] not in FORMATS or "string" not in kinds:
        return rest
    if "pattern" in rest and _names_local_times(node):
        return rest
    if "pattern" in rest:
        part = {ORIGIN: origin(node), "format": node["format"]}
        return {**rest, "allOf": [*rest.get("allOf", ()), part]}
    return node


def _names_local_times(node: Schema) -> bool:
    """Return whether a node uses "time" for times without an offset, as generators do."""
    if node["format"] != "time":
        return False
    try:
        texts = searched(node["pattern"])
        return are_disjoint(texts, parse(FORMATS["time"]), Effort(MAX_COMPARED))
    except Undecided:
        return False


def drawn_in(node: Schema) -> Schema:
    """Return a node with bounds beyond REACH narrowed to it.

    Only for nodes that generate values: the negation of a narrower node is wider.
    """
    if "enum" in node or "const" in node:
        return node
    lowest = max(node.get("minimum", -REACH), node.get("exclusiveMinimum", -REACH))
    highest = min(node.get("maximum", REACH), node.get("exclusiveMaximum", REACH))
    if highest <= -REACH or lowest >= REACH:
        return node
    narrowed = dict(node)
    for keyword, others, limit, sign in (
        ("minimum", "exclusiveMinimum", -REACH, -1),
        ("maximum", "exclusiveMaximum", REACH, 1),
    ):
        if any(sign * narrowed.get(word, 0) > REACH for word in (keyword, others)):
            narrowed.pop(keyword, None)
            narrowed.pop(others, None)
            narrowed[keyword] = limit
    return narrowed
