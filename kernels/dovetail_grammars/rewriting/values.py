"""A small validator: whether a constant is valid under a schema in gathered form.

Regular expressions run as automata, so that no pattern takes long. Raises Undecided for what it
cannot decide. Source: https://json-schema.org/draft/2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail_grammars.json_formats import BOUNDS, FORMATS
from dovetail_grammars.regex_reader import parse
from dovetail_grammars.rewriting.automaton import Effort, Undecided, matches, searched
from dovetail_grammars.rewriting.tree import KIND_OF, Schema, resolved

MAX_DEPTH = 100
_MIN_MAX = {
    "minLength": ("string", 1),
    "maxLength": ("string", -1),
    "minItems": ("array", 1),
    "maxItems": ("array", -1),
    "minProperties": ("object", 1),
    "maxProperties": ("object", -1),
}


def kind_of(value: Any) -> str:
    """Return the type of a JSON value, "number" for integers too."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer; 1.0 is one."""
    return kind_of(value) == "number" and (isinstance(value, int) or value.is_integer())


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if kind_of(one) != kind_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    return bool(one == other)


def meets(value: Any, schema: Any, root: Schema, effort: Effort) -> bool:
    """Return whether a value is valid under a schema. Raises: Undecided"""
    return _Validator(root, effort).meets(value, schema, 0)


class _Validator:
    def __init__(self, root: Schema, effort: Effort) -> None:
        self._root = root
        self._effort = effort

    def meets(self, value: Any, schema: Any, depth: int) -> bool:
        if isinstance(schema, bool):
            return schema
        self._effort.spend(1 + len(schema))
        if depth > MAX_DEPTH:
            raise Undecided("the schema refers to itself")
        kind = kind_of(value)
        return all(
            self._keyword(keyword, value, schema, depth + 1)
            for keyword in schema
            if KIND_OF.get(keyword, kind) == kind
        )

    def _keyword(self, keyword: str, value: Any, node: Mapping[str, Any], depth: int) -> bool:
        said = node[keyword]
        if keyword in _MIN_MAX:
            _, sign = _MIN_MAX[keyword]
            return bool(sign * len(value) >= sign * said)
        match keyword:
            case "type":
                names = [said] if isinstance(said, str) else said
                return kind_of(value) in names or ("integer" in names and is_whole(value))
            case "enum":
                self._effort.spend(len(said))
                return any(same(value, one) for one in said)
            case "const":
                return same(value, said)
            case "$ref":
                return self.meets(value, resolved(self._root, said), depth)
            case "allOf":
                return all(self.meets(value, part, depth) for part in said)
            case "anyOf":
                return any(self.meets(value, part, depth) for part in said)
            case "oneOf":
                return sum(self.meets(value, part, depth) for part in said) == 1
            case "not":
                return not self.meets(value, said, depth)
            case "if":
                branch = "then" if self.meets(value, said, depth) else "else"
                return self.meets(value, node.get(branch, True), depth)
            case "pattern":
                return matches(searched(said), value, self._effort)
            case "format":
                return _has_format(value, said, self._effort)
        if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            return _is_within(keyword, Fraction(str(value)), Fraction(str(said)))
        if KIND_OF.get(keyword) == "array":
            return self._array(keyword, value, node, depth)
        return KIND_OF.get(keyword) != "object" or self._object(keyword, value, node, depth)

    def _array(self, keyword: str, value: Any, node: Mapping[str, Any], depth: int) -> bool:
        said = node[keyword]
        match keyword:
            case "prefixItems":
                return all(self.meets(v, s, depth) for v, s in zip(value, said, strict=False))
            case "items":
                rest = value[len(node.get("prefixItems", ())) :]
                return all(self.meets(item, said, depth) for item in rest)
            case "uniqueItems":
                return not said or not any(
                    same(one, other) for n, one in enumerate(value) for other in value[:n]
                )
            case "contains":
                count = sum(self.meets(item, said, depth) for item in value)
                return bool(node.get("minContains", 1) <= count <= node.get("maxContains", count))
            case "minContains" | "maxContains":
                return True
        raise Undecided(f'"{keyword}" of a constant')

    def _object(self, keyword: str, value: Any, node: Mapping[str, Any], depth: int) -> bool:
        said = node[keyword]
        match keyword:
            case "required":
                return all(name in value for name in said)
            case "properties":
                return all(self.meets(value[k], s, depth) for k, s in said.items() if k in value)
            case "patternProperties":
                return all(
                    self.meets(v, s, depth)
                    for p, s in said.items()
                    for k, v in value.items()
                    if matches(searched(p), k, self._effort)
                )
            case "additionalProperties":
                patterns = list(map(searched, node.get("patternProperties", ())))
                known = node.get("properties", ())
                return all(
                    self.meets(v, said, depth)
                    for k, v in value.items()
                    if k not in known and not any(matches(p, k, self._effort) for p in patterns)
                )
            case "propertyNames":
                return all(self.meets(name, said, depth) for name in value)
            case "dependentRequired":
                return all(w in value for name, ws in said.items() if name in value for w in ws)
            case "dependentSchemas":
                return all(self.meets(value, s, depth) for n, s in said.items() if n in value)
        raise Undecided(f'"{keyword}" of a constant')


def _is_within(keyword: str, value: Fraction, bound: Fraction) -> bool:
    match keyword:
        case "minimum":
            return value >= bound
        case "maximum":
            return value <= bound
        case "exclusiveMinimum":
            return value > bound
        case "exclusiveMaximum":
            return value < bound
    return value % bound == 0


def _has_format(value: Any, name: str, effort: Effort) -> bool:
    if name in BOUNDS:
        minimum, maximum = BOUNDS[name]
        return kind_of(value) != "number" or minimum <= value <= maximum
    if kind_of(value) != "string" or name not in FORMATS:
        return True
    if matches(parse(FORMATS[name]), value, effort):
        return True
    raise Undecided("the format has spellings that are not distinguished here")
