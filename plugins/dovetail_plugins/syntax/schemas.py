"""The content of a JSON schema: a value's types, its listed values, its inner schemas.

Looks through references and through the parts of anyOf, oneOf and allOf.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

TEXT = frozenset({"string"})
NUMBERS = frozenset({"integer", "number"})
MAX_REFERENCES = 8
MAX_DEPTH = 16
MAX_PARTS = 512
PARTS = ("allOf", "anyOf", "oneOf")
BRANCHES = ("then", "else")


def alone(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its own reference followed, and with the root's definitions."""
    resolved = _followed(schema if isinstance(schema, dict) else {}, root)
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**definitions, **resolved} if "$ref" in json.dumps(resolved) else dict(resolved)


def _followed(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**_at(root, reference), **own}
    return schema


def _at(root: Mapping[str, Any], reference: str) -> dict[str, Any]:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def _layers(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and the parts that speak of the same value, MAX_PARTS at most."""
    waiting = [(dict(schema), 0)]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        found, depth = waiting.pop(0)
        found = _followed(found, root)
        yield found
        parts = [part for key in PARTS if isinstance(found.get(key), list) for part in found[key]]
        parts += [found[key] for key in BRANCHES if key in found]
        if depth < MAX_DEPTH:
            waiting += [(part, depth + 1) for part in parts if isinstance(part, dict)]


def properties_of(schema: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return all schemas of each property in an object's schema."""
    found: dict[str, list[dict[str, Any]]] = {}
    for layer in _layers(schema, schema):
        declared = layer.get("properties")
        for name, part in (declared if isinstance(declared, dict) else {}).items():
            if isinstance(part, dict) and part not in found.setdefault(name, []):
                found[name].append(part)
    return found


def inner_schema(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a property, {} if none is declared; of several, any of them."""
    found = properties_of(schema).get(name, [])
    if not found:
        more = [layer.get("additionalProperties") for layer in _layers(schema, schema)]
        found = [part for part in more if isinstance(part, dict)]
    return _one(found, schema)


def item_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list's items, {} if none is declared; of several, any of them."""
    found = [layer.get("items") for layer in _layers(schema, schema)]
    return _one([part for part in found if isinstance(part, dict)], schema)


def _one(found: list[dict[str, Any]], root: Mapping[str, Any]) -> dict[str, Any]:
    if len(found) <= 1:
        return alone(found[0], root) if found else {}
    return alone({"anyOf": found}, root)


def listed(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists, wherever it does."""
    found: list[Any] = []
    for layer in _layers(schema, schema):
        values = layer.get("enum", [layer["const"]] if "const" in layer else None)
        found += values if isinstance(values, list) else []
    return found


def kinds(
    schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, depth: int = 0
) -> frozenset[str] | None:
    """Return the JSON types that a schema allows, or None if it does not say."""
    root = schema if root is None else root
    schema = _followed(dict(schema), root) if "$ref" in schema else schema
    named = schema.get("type")
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        return frozenset(str(kind) for kind in named) | _if_nullable(schema)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(kind_of(value) for value in values)
    if depth > MAX_DEPTH:
        return None
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            part_kinds = [_part_kinds(part, root, depth) for part in schema[key]]
            some = [kind for kind in part_kinds if kind is not None]
            return frozenset().union(*some) if len(some) == len(part_kinds) else None
    parts = schema.get("allOf") if isinstance(schema.get("allOf"), list) else []
    part_kinds = [_part_kinds(part, root, depth) for part in parts or ()]
    return next((kind for kind in part_kinds if kind is not None), None)


def _part_kinds(part: Any, root: Mapping[str, Any], depth: int) -> frozenset[str] | None:
    return kinds(part, root, depth + 1) if isinstance(part, dict) else None


def _if_nullable(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({"null"}) if schema.get("nullable") is True else frozenset()


def kind_of(value: Any) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), (float, "number"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def is_allowed(kind: str, allowed: frozenset[str] | None) -> bool:
    """Return whether a value of this type is one of those allowed."""
    if allowed is None or kind in allowed:
        return True
    return kind in NUMBERS and bool(allowed & NUMBERS)


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a parameter is declared as a string and nothing else."""
    return kinds(schema) == TEXT
