"""Shared by the passes: keywords of schemas, origins of nodes, and a budget.

A node that a pass has moved or made stores the JSON Pointer of its origin as its `$comment`; the
author's own comments are dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.keywords import words

Schema = dict[str, Any]
ORIGIN = "$comment"
KINDS = ("object", "array", "string", "number", "boolean", "null")
"""The types of values; "number" includes "integer"."""
OF_SCHEMAS = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)
OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
OF_ONE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
KIND_OF = {
    **dict.fromkeys(words("minLength maxLength pattern"), "string"),
    **dict.fromkeys(
        words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"), "number"
    ),
    **dict.fromkeys(
        words(
            "items prefixItems additionalItems minItems maxItems uniqueItems contains "
            "minContains maxContains unevaluatedItems"
        ),
        "array",
    ),
    **dict.fromkeys(
        words(
            "properties patternProperties additionalProperties propertyNames required "
            "minProperties maxProperties dependentRequired dependentSchemas dependencies "
            "unevaluatedProperties"
        ),
        "object",
    ),
}
"""Keyword -> the type of values that it constrains; values of other types are always valid."""
VALIDATING = frozenset(KIND_OF) | words(
    "type enum const format allOf anyOf oneOf not if then else $ref"
)
"""The keywords that can make a value invalid. All others are annotations."""
MAX_NODES = 20_000


class Budget:
    """Counts the nodes that passes make, so that rewriting cannot explode."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._left = max_nodes

    def spend(self, count: int, at: str) -> None:
        """Use up this many nodes. Raises: InvalidConstraint when none are left"""
        self._left -= count
        if self._left < 0:
            raise InvalidConstraint("the schema becomes too large where it is rewritten", at)


def kinds_of(node: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of KINDS that `type` allows; "number" includes integers."""
    given = node.get("type")
    if given is None:
        return frozenset(KINDS)
    names = [given] if isinstance(given, str) else given
    return frozenset("number" if name == "integer" else name for name in names)


def origin(node: Any) -> str:
    """Return the JSON Pointer of a node's origin."""
    found = node.get(ORIGIN, "") if isinstance(node, Mapping) else ""
    return str(found)


def is_any(schema: Any) -> bool:
    """Return whether a schema allows every value."""
    return schema is True or (isinstance(schema, Mapping) and not set(schema) - {ORIGIN, "$defs"})


def with_parts(node: Schema, *parts: Any) -> Schema:
    """Return a node that must also meet these schemas."""
    wanted = [part for part in parts if not is_any(part)]
    if not wanted:
        return node
    return {**node, "allOf": [*node.get("allOf", ()), *wanted]}


def any_of(branches: list[Any], at: str) -> Any:
    """Return the schema of the values that meet at least one of these."""
    possible = [branch for branch in branches if branch is not False]
    if any(map(is_any, possible)):
        return True
    if not possible:
        return False
    return possible[0] if len(possible) == 1 else {ORIGIN: at, "anyOf": possible}


def all_of(parts: list[Any], at: str) -> Any:
    """Return the schema of the values that meet all of these."""
    restricting = [part for part in parts if not is_any(part)]
    if any(part is False for part in restricting):
        return False
    if not restricting:
        return True
    return restricting[0] if len(restricting) == 1 else {ORIGIN: at, "allOf": restricting}


def mapped(node: Schema, change: Callable[[Any], Any]) -> Schema:
    """Return a node with `change` applied to its direct subschemas."""
    changed: Schema = {}
    for keyword, value in node.items():
        if keyword in OF_SCHEMAS and isinstance(value, Mapping):
            changed[keyword] = {name: _changed(inner, change) for name, inner in value.items()}
        elif keyword in OF_LISTS and isinstance(value, list):
            changed[keyword] = [_changed(inner, change) for inner in value]
        elif keyword in OF_ONE:
            changed[keyword] = _changed(value, change)
        else:
            changed[keyword] = value
    return changed


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    return change(value) if isinstance(value, bool | Mapping) else value


def below(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a node, each with its JSON Pointer from there."""
    for keyword, value in node.items():
        yield from subschemas(keyword, value)


def subschemas(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas of one keyword of a node, each with its JSON Pointer from there."""
    if keyword in OF_SCHEMAS and isinstance(value, Mapping):
        yield from ((f"/{keyword}/{escaped(name)}", inner) for name, inner in value.items())
    elif (keyword in OF_LISTS or keyword == "items") and isinstance(value, list):
        yield from ((f"/{keyword}/{number}", inner) for number, inner in enumerate(value))
    elif keyword in OF_ONE:
        yield f"/{keyword}", value


def escaped(key: str) -> str:
    """Return a key, escaped for a JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def resolved(root: Schema, reference: str) -> Any:
    """Return the target of a reference of the gathered form: "#" or "#/$defs/NAME"."""
    if reference == "#":
        return root
    name = reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
    return root.get("$defs", {}).get(name, False)


def circular(root: Schema) -> frozenset[str]:
    """Return the references of a gathered document that are recursive."""
    targets = {f"#/$defs/{escaped(name)}": schema for name, schema in root.get("$defs", {}).items()}
    targets["#"] = {keyword: value for keyword, value in root.items() if keyword != "$defs"}
    leads = {reference: _references(schema) for reference, schema in targets.items()}
    return frozenset(reference for reference in leads if _reaches(leads, reference))


def _references(schema: Any) -> set[str]:
    found, pending = set(), [schema]
    for node in pending:
        if isinstance(node, Mapping):
            found |= {node["$ref"]} if "$ref" in node else set()
            pending += [inner for _, inner in below(node)]
    return found


def _reaches(leads: Mapping[str, set[str]], goal: str) -> bool:
    seen, pending = set(leads[goal]), list(leads[goal])
    for reference in pending:
        fresh = leads.get(reference, set()) - seen
        seen |= fresh
        pending += fresh
    return goal in seen
