"""JSON schemas looked at keyword by keyword: what a backend would not enforce, and where it stands.

Source: https://json-schema.org/draft/2020-12 (keywords), RFC 6901 (pointers). Compiles nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.guided import GuidedBackend, Refusal, words

MAX_DEPTH = 64
WITHOUT_EFFECT = words(
    "title description default examples example $schema $id $comment $anchor $vocabulary "
    "deprecated readOnly writeOnly contentMediaType contentEncoding contentSchema "
    "strict name x-guidance"
)
"""Keywords that never make a value right or wrong."""
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_OF_ONE = (
    "items",
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


def schema_refusals(backend: type[GuidedBackend], schema: Any) -> list[Refusal]:
    """Return the keywords of a schema that the backend would not enforce, with JSON Pointers."""
    found = []
    for pointer, node in nodes(schema):
        if len(pointer) and pointer.count("/") > 2 * MAX_DEPTH:
            return [Refusal(pointer, f"schemas nested more than {MAX_DEPTH} deep are not taken")]
        for keyword in node:
            said = _refusal(backend, node, keyword)
            if said is not None:
                found.append(Refusal(f"{pointer}/{escaped(keyword)}", said))
    return found


def _refusal(backend: type[GuidedBackend], node: Mapping[str, Any], keyword: str) -> str | None:
    if keyword in WITHOUT_EFFECT or keyword.startswith("x-"):
        return None
    if keyword not in backend.keywords:
        return f'the keyword "{keyword}" is not enforced'
    return backend.refuses(node, keyword)


def nodes(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every schema within a schema with its JSON Pointer, the outer ones first."""
    pending = [(pointer, schema)]
    while pending:
        at, node = pending.pop()
        if not isinstance(node, Mapping):
            continue  # true and false are schemas without keywords
        yield at, node
        for keyword, value in reversed(list(node.items())):
            pending += reversed(list(_children(f"{at}/{escaped(keyword)}", keyword, value)))


def _children(at: str, keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    if keyword in _OF_SCHEMAS and isinstance(value, Mapping):
        yield from ((f"{at}/{escaped(name)}", inner) for name, inner in value.items())
    elif keyword in (*_OF_LISTS, "items") and isinstance(value, list):
        yield from ((f"{at}/{index}", inner) for index, inner in enumerate(value))
    elif keyword in _OF_ONE:
        yield at, value


def escaped(key: str) -> str:
    """Return a key as it stands in a JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which objects with properties have no others, unless it says so."""
    made: dict[str, Any] = copy.deepcopy(dict(schema))
    for _, node in nodes(made):
        if isinstance(node.get("properties"), dict) and isinstance(node, dict):
            node.setdefault("additionalProperties", False)
    return made
