"""Type words that Python users write in tools' schemas, as the JSON types they mean.

JSON Schema has seven types. Schemas made by hand or from signatures also use float, dict, list[int]
or Optional[str]; an unknown word is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
WORDS = {
    "string": ("str",),
    "integer": ("int", "long", "short", "int8", "int16", "int32", "int64", "uint", "uint8",
                "uint16", "uint32", "uint64"),
    "number": ("float", "double", "decimal", "float16", "float32", "float64"),
    "boolean": ("bool",),
    "object": ("dict", "mapping", "map", "ordereddict", "defaultdict", "typeddict"),
    "array": ("list", "tuple", "set", "frozenset", "sequence", "iterable", "arr"),
    "null": ("none", "nonetype"),
}  # fmt: skip
_OF_WORD = {word: kind for kind, words in WORDS.items() for word in words}
_GENERIC = re.compile(r"(?:typing\.)?([\w.]+)\s*\[(.*)\]", re.DOTALL)
_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
MAX_DEPTH = 32


def json_types(word: str) -> frozenset[str] | None:
    """Return the JSON types that a type word means, itself if it is unknown; None: any of them."""
    named = word.strip()
    if named in JSON_TYPES:
        return frozenset({named})
    if "|" in _outside(named):
        return _united(_split(named, "|"))
    generic = _GENERIC.fullmatch(named)
    name = (generic[1] if generic else named).rpartition(".")[2].lower()
    if name == "any":
        return None
    if generic and name == "optional":
        return _united([generic[2], "null"])
    if generic and name == "union":
        return _united(_split(generic[2], ","))
    return frozenset({_OF_WORD.get(name, name if name in JSON_TYPES else word)})


def _united(words: list[str]) -> frozenset[str] | None:
    found = [json_types(word) for word in words]
    known = [kinds for kinds in found if kinds is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def _outside(text: str) -> str:
    """Return the part of a text outside of brackets."""
    depth, outside = 0, ""
    for letter in text:
        depth += letter == "["
        outside += letter if depth <= 0 else ""
        depth -= letter == "]"
    return outside


def _split(text: str, by: str) -> list[str]:
    """Return the parts of a text between dividers that are outside brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == by and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def with_json_types(schema: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the schema with the JSON types that its type words mean, in all its parts."""
    converted = dict(schema)
    if depth > MAX_DEPTH:
        return converted
    named = converted.get("type")
    if isinstance(named, str) and named not in JSON_TYPES:
        _put_types(converted, json_types(named))
    elif isinstance(named, list) and not JSON_TYPES.issuperset(map(str, named)):
        _put_types(converted, _united([str(word) for word in named]))
    for key in _MAPS:
        if isinstance(converted.get(key), dict):
            converted[key] = {name: _part(part, depth) for name, part in converted[key].items()}
    for key in _LISTS:
        if isinstance(converted.get(key), list):
            converted[key] = [_part(part, depth) for part in converted[key]]
    for key in _ONES:
        if key in converted:
            converted[key] = _part(converted[key], depth)
    return converted


def _part(part: Any, depth: int) -> Any:
    return with_json_types(part, depth + 1) if isinstance(part, dict) else part


def _put_types(schema: dict[str, Any], kinds: frozenset[str] | None) -> None:
    if kinds is None:
        del schema["type"]
    else:
        schema["type"] = next(iter(kinds)) if len(kinds) == 1 else sorted(kinds)
