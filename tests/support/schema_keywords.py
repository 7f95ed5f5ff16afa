"""Schemas to sample from: values for every keyword, alone and two on one node, anywhere."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
DEFS: Schema = {
    "n": {"type": "integer", "minimum": 2, "maximum": 30},
    "s": {"type": "string", "maxLength": 4},
    "o": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    "r": {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/r"}, "v": {"type": "null"}},
        "required": ["v"],
        "additionalProperties": False,
    },
    "a/b~c": {"enum": [1, "x"]},
}
_INT, _SHORT, _BOOL = {"type": "integer"}, {"type": "string", "maxLength": 3}, {"type": "boolean"}
VALUES: dict[str, list[Any]] = {
    "type": [
        *("string", "integer", "number", "boolean", "null", "object", "array"),
        *(["string", "null"], ["integer", "boolean"], ["array", "object", "number"]),
    ],
    "enum": [["a", "bb"], [1, 2.5, None], [{"a": 1}, [1, 2]], ['x"y', "\u00e9\n", True], [3, 3.0]],
    "const": ["a", 7, None, {"a": [1]}, -1.5, [], "\u00e9", {"b": {}, "a": 1}, 100, "\0b"],
    "properties": [
        {"a": _INT},
        {"a": _SHORT, "b": _BOOL},
        {"a/b": {"const": 1}, "": {"type": "null"}},
        {"\u00e9": _INT, 'q"': _BOOL, "x1": {"type": "string"}},
        {"a": False, "b": True},
    ],
    "required": [["a"], ["a", "b"], ["z"], [], ["x1"]],
    "additionalProperties": [False, True, _INT, _SHORT],
    "patternProperties": [
        {"^x": _INT},
        {"^[a-c]$": _BOOL},
        {"b": {"type": "null"}},
        {"^x": _INT, "1$": {"minimum": 5}},
    ],
    "propertyNames": [{"maxLength": 2}, {"pattern": "^[a-c]+$"}, {"enum": ["a", "b"]}],
    "minProperties": [0, 1, 2],
    "maxProperties": [0, 1, 2],
    "dependentRequired": [{"a": ["b"]}],
    "dependentSchemas": [{"a": {"required": ["b"]}}],
    "unevaluatedProperties": [False],
    "items": [_INT, False, True, {"enum": [1, "x"]}, {"type": ["string", "null"], "maxLength": 2}],
    "prefixItems": [[_INT], [_SHORT, _BOOL], [{"const": 1}, _INT, _INT]],
    "minItems": [0, 1, 3],
    "maxItems": [0, 1, 4],
    "uniqueItems": [True, False],
    "contains": [_INT],
    "minContains": [2],
    "maxContains": [1],
    "unevaluatedItems": [False],
    "minLength": [0, 2, 5],
    "maxLength": [0, 3, 8],
    "pattern": [
        *("^[a-c]+$", "b", "^x", "y$", r"^\d{2,3}-\w+$", "^(foo|bar)*$", "^$", r"\S", "^a|b$"),
        *(r"^[^\s\d]{1,3}$", r'^["\\]+$', "^\u00e9.$", r"^a\.b$", "^(?:ab){2,}$", r"^\w+\s\w+$"),
        *('^[^"]{1,4}$', r"^[^\\/]+$", "^[^a-z]*z$", "^[\0-\x1fa-c]{2}$", "^[\x7f-\xff]+$"),
    ],
    "format": [
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri"),
        *("int32", "int64", "uuid", "regex", "iri", "json-pointer", "of-nobody"),
    ],
    "minimum": [0, 3, -2, 1.5, 10, -1000, 1e3],
    "maximum": [5, 9, 2.5, -1, 100, 99.95, 1e20],
    "exclusiveMinimum": [0, 3, -2, 1.5, 10],
    "exclusiveMaximum": [5, 9, 2.5, -1, 100],
    "multipleOf": [1, 2, 3, 0.5, 0.1, 10, 7],
    "anyOf": [
        [_INT, _SHORT],
        [{"minLength": 2}, {"type": "null"}],
        [{"required": ["a"]}, {"required": ["b"]}],
        [{"minimum": 3}, {"maximum": 1}],
        [{"type": "object", "properties": {"a": _INT}}, {"type": "array", "items": _BOOL}],
    ],
    "oneOf": [
        [_INT, _SHORT],
        [{"const": 1}, {"const": "a"}],
        [{"type": "number"}, _INT],
        [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}],
        [{"minimum": 3}, {"maximum": 5}],
        [
            {"type": "object", "properties": {"k": {"const": c}, "a": v}, "required": ["k"]}
            for c, v in (("x", _INT), ("y", _SHORT))
        ],
        [{"required": ["a"]}, {"required": ["b"]}],
        [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/o"}, {"type": "null"}],
        [
            {"$ref": "#/$defs/r"},
            {"type": "object", "properties": {"v": {"const": 2}}, "required": ["v"]},
        ],
    ],
    "allOf": [
        [{"minimum": 2}, {"maximum": 7}],
        [
            {"type": "object", "properties": {"a": _INT}, "required": ["a"]},
            {"properties": {"b": _BOOL}},
        ],
        [{"pattern": "^a"}, {"maxLength": 3}],
        [{"pattern": "^a"}, {"pattern": "b$"}],
        [{"enum": [1, 2, "a"]}, {"enum": [2, "a", None]}],
        [{"multipleOf": 2}, {"multipleOf": 3}],
        [{"items": {"minimum": 1}}, {"items": {"maximum": 4}}],
    ],
    "not": [{"type": "string"}, {"const": 3}],
    "if": [{"type": "string"}],
    "$ref": ["#/$defs/n", "#/$defs/s", "#/$defs/o", "#/$defs/r", "#/$defs/a~1b~0c"],
}
TYPE_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
    ),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_FAMILY = {word: kind for kind, family in TYPE_OF.items() for word in family}


def pairs_of(keywords: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield each of these keywords alone, then two by two."""
    known = sorted(set(VALUES) & keywords)
    yield from ((word,) for word in known)
    yield from itertools.combinations(known, 2)


def node(words: tuple[str, ...], keywords: frozenset[str], chance: random.Random) -> Schema:
    """Return a schema with these keywords, at times with a type or one more of their family."""
    made = {word: chance.choice(VALUES[word]) for word in words}
    families = [_FAMILY[word] for word in words if word in _FAMILY]
    if families and "type" not in made and chance.random() < 0.6:
        kind = chance.choice(families)
        made["type"] = "integer" if kind == "number" and chance.random() < 0.5 else kind
    if families and chance.random() < 0.3:
        more = chance.choice([w for w in TYPE_OF[chance.choice(families)] if w in keywords])
        made.setdefault(more, chance.choice(VALUES[more]))
    items = list(made.items())
    chance.shuffle(items)
    return dict(items)


def placed(inner: Schema, chance: random.Random) -> Schema:
    """Return a schema with a node somewhere in it, and with what it may refer to."""
    match chance.randrange(8):
        case 0:
            made: Schema = {
                "type": "object",
                "properties": {"v": inner, "w": _BOOL},
                "required": ["v"],
                "additionalProperties": False,
            }
        case 1:
            made = {"type": "array", "items": inner, "minItems": 1, "maxItems": 2}
        case 2:
            made = {"anyOf": [inner, {"const": "other"}]}
        case 3:
            return {"$ref": "#/$defs/inner", "$defs": {**DEFS, "inner": inner}}
        case _:
            made = dict(inner)
    return {**made, "$defs": DEFS} if '"$ref"' in json.dumps(inner) else made
