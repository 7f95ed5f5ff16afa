"""JSON schemas as grammars over characters, for libraries with good automata but with schema
parsers that allow invalid values.

Members come in the order of `properties`; strings contain no \\u escapes, so that a name has only
one spelling. What cannot be expressed this way is refused. Source:
https://json-schema.org/draft/2020-12.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.json_formats import FORMATS, bounded
from dovetail_grammars.json_merge import both
from dovetail_grammars.keywords import words
from dovetail_grammars.numbers import number_within
from dovetail_grammars.regex import (
    ANY,
    Cat,
    Chars,
    Many,
    Node,
    Or,
    Rule,
    literal,
    outside,
    quoted,
    ranges,
    without,
)
from dovetail_grammars.regex_reader import found_within, parse
from dovetail_grammars.rewriting.automaton import Effort, Undecided, shared
from dovetail_grammars.rewriting.values import meets, same
from dovetail_grammars.schema import resolved

KEYWORDS = words(
    "type enum const properties required additionalProperties items prefixItems minItems maxItems "
    "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum "
    "anyOf oneOf allOf $ref $defs definitions"
)
ROOT = "root"
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_RULES = 20_000
_CHARACTER = quoted(Chars(ANY))
_NOTHING = Or(())


class JsonGrammar:
    """The rules for one schema; `rules[ROOT]` is the start rule.

    With `depth` None rules may refer to each other. With a number there is only the start rule:
    recursive schemas are refused, and values without a schema nest at most this deep.
    """

    def __init__(self, schema: Any, whitespace: str, depth: int | None = None) -> None:
        self._schema = schema
        self._blank = parse(whitespace)
        self._depth = depth
        self._names: dict[str, Node] = {}
        self._open: set[str] = set()
        self.rules: dict[str, Node] = {}
        try:
            self.rules[ROOT] = self._value(schema, depth)
        except RecursionError as error:
            raise InvalidConstraint(
                "the schema is nested too deeply, or refers to itself"
            ) from error
        if self.rules[ROOT] == _NOTHING:
            raise InvalidConstraint("no value meets the schema")

    # Every method returns _NOTHING if no value fits.

    def _value(self, schema: Any, depth: int | None) -> Node:
        """Return the values of a schema, as a separate rule if rules are allowed."""
        if schema is False:
            return _NOTHING
        merged = _merged(self._schema, schema)
        key = json.dumps(merged)
        if self._depth is not None:
            return self._unfolded(f"{depth} {key}", merged, depth)
        if key not in self._names:
            if len(self._names) > MAX_RULES:
                raise InvalidConstraint("the schema has too many parts")
            name = f"v{len(self._names)}"
            self._names[key] = Rule(name)
            node = self._branches(merged, depth)
            if node == _NOTHING:
                self._names[key] = node
            else:
                self.rules[name] = node
        return self._names[key]

    def _unfolded(self, key: str, merged: dict[str, Any], depth: int | None) -> Node:
        if key in self._open:
            raise InvalidConstraint(
                "a recursive schema is not supported: regular expressions cannot recurse"
            )
        self._open.add(key)
        node = self._branches(merged, depth)
        self._open.remove(key)
        return node

    def _branches(self, schema: dict[str, Any], depth: int | None) -> Node:
        """Return the values of a schema without references."""
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            rest = {k: v for k, v in schema.items() if k != keyword}
            parts = [_merged(self._schema, p) for p in schema[keyword] if p is not False]
            if keyword == "oneOf" and not _are_apart(parts):
                raise InvalidConstraint("the branches of oneOf must differ by type or constant")
            return _either([self._branches(both(rest, part), depth) for part in parts])
        if "enum" in schema:
            return self._constants(schema)
        kinds = schema.get("type", list(_TYPES))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        return _either([self._of_type(kind, schema, depth) for kind in kinds])

    def _constants(self, schema: dict[str, Any]) -> Node:
        """Return the constants of a schema that its other keywords allow."""
        values = schema["enum"]
        if set(schema) - {"enum", "type"}:
            try:
                values = [v for v in values if meets(v, schema, self._schema, Effort())]
            except Undecided as error:
                what = f"constants beside other keywords are not supported: {error}"
                raise InvalidConstraint(what) from error
        if "type" in schema:
            kinds = schema["type"]
            kinds = {kinds} if isinstance(kinds, str) else set(kinds)
            values = [value for value in values if _types_of(value) & kinds]
        return _either([self._constant(value) for value in values])

    def _constant(self, value: Any) -> Node:
        if isinstance(value, dict):
            members = [self._member(literal(_text(k)), self._constant(v)) for k, v in value.items()]
            return self._wrapped("{", Cat(tuple(self._separated(members))), "}")
        if isinstance(value, list):
            parts = self._separated([self._constant(item) for item in value])
            return self._wrapped("[", Cat(tuple(parts)), "]")
        return literal(_text(value))

    def _of_type(self, kind: str, schema: dict[str, Any], depth: int | None) -> Node:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return _string(schema)
            case "boolean":
                return Or((literal("true"), literal("false")))
            case "null":
                return literal("null")
        return number_within(schema, is_whole=kind == "integer")

    def _object(self, schema: dict[str, Any], depth: int | None) -> Node:
        named = dict(schema.get("properties", {}))
        required = set(schema.get("required", ()))
        others = schema.get("additionalProperties", not named)
        for name in sorted(required - set(named)):
            named[name] = others if "additionalProperties" in schema else True
        begun: Node = Cat(())
        fresh: list[Node] = []
        more = _NOTHING if others is False else self._value_of_any(others, depth)
        if more != _NOTHING:
            member = self._member(_name_outside(named), more)
            begun = Many(Cat((self._comma(), member)), 0, None)
            fresh = [Cat((member, begun))]
        may_be_empty = True
        for name in reversed(list(named)):
            value = self._value(named[name], depth)
            is_needed = name in required
            if value == _NOTHING and is_needed:
                return _NOTHING
            if value == _NOTHING:
                continue
            member = self._member(literal(_text(name)), value)
            fresh = [Cat((member, begun)), *(() if is_needed else fresh)]
            follows = Cat((self._comma(), member, begun))
            begun = self._shared(follows if is_needed else Or((follows, begun)))
            fresh = [self._shared(_either(fresh))]
            may_be_empty &= not is_needed
        empty = [self._wrapped("{", Cat(()), "}")] if may_be_empty else []
        return _either([*(self._wrapped("{", part, "}") for part in fresh), *empty])

    def _value_of_any(self, schema: Any, depth: int | None) -> Node:
        """Return the values of a member or item, one level deeper if no schema describes them."""
        if depth is None or schema not in (True, {}):
            return self._value(schema, depth)
        return self._value(True, depth - 1) if depth else _NOTHING

    def _shared(self, node: Node) -> Node:
        """Return a part as a rule if rules are allowed, to keep the grammar short."""
        if self._depth is not None:
            return node
        if len(self.rules) > MAX_RULES:
            raise InvalidConstraint("the schema has too many parts")
        name = f"m{len(self.rules)}"
        self.rules[name] = node
        return Rule(name)

    def _array(self, schema: dict[str, Any], depth: int | None) -> Node:
        heads = list(schema.get("prefixItems", ()))
        minimum, maximum = schema.get("minItems", 0), schema.get("maxItems")
        empty = self._wrapped("[", Cat(()), "]")
        if maximum is not None and maximum < minimum:
            return _NOTHING
        if maximum == 0:
            return empty if minimum == 0 else _NOTHING
        item = self._value_of_any(schema.get("items", True), depth)
        values = [self._value(head, depth) for head in heads[:maximum]]
        if _NOTHING in values:
            values, item, maximum = values[: values.index(_NOTHING)], _NOTHING, None
        room = None if maximum is None else maximum - len(values)
        tail: Node = Cat(())
        if item != _NOTHING and room != 0:
            tail = Many(Cat((self._comma(), item)), max(0, minimum - len(values)), room)
        elif minimum > len(values):
            return _NOTHING
        if not values:
            if item == _NOTHING:
                return empty
            rest = Many(
                Cat((self._comma(), item)),
                max(0, minimum - 1),
                None if maximum is None else maximum - 1,
            )
            return self._list(Cat((item, rest)), minimum)
        for index in reversed(range(1, len(values))):
            tail = Cat((self._comma(), values[index], tail))
            tail = tail if index < minimum else Many(tail, 0, 1)
        return self._list(Cat((values[0], tail)), minimum)

    def _list(self, inner: Node, minimum: int) -> Node:
        """Return a list, which may be empty if `minimum` is 0."""
        empty = [] if minimum else [self._wrapped("[", Cat(()), "]")]
        return _either([self._wrapped("[", inner, "]"), *empty])

    def _wrapped(self, before: str, inner: Node, after: str) -> Node:
        parts = (literal(before), self._blank, inner, self._blank, literal(after))
        return Cat(parts if inner != Cat(()) else (parts[0], parts[1], parts[4]))

    def _member(self, name: Node, value: Node) -> Node:
        return Cat((name, self._blank, literal(":"), self._blank, value))

    def _comma(self) -> Node:
        return Cat((self._blank, literal(","), self._blank))

    def _separated(self, parts: list[Node]) -> list[Node]:
        result: list[Node] = []
        for index, part in enumerate(parts):
            result += [self._comma(), part] if index else [part]
        return result


def _merged(root: Any, schema: Any, through: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a schema with its references and allOf merged in. Raises: InvalidConstraint"""
    schema = {} if schema is True else schema
    node = bounded({k: v for k, v in schema.items() if k in KEYWORDS})
    for keyword in ("$defs", "definitions"):
        node.pop(keyword, None)
    if (name := node.pop("format", None)) is not None:
        node = both({"pattern": f"^(?:{FORMATS[name]})$"}, node)
    parts = node.pop("allOf", [])
    reference = node.pop("$ref", None)
    if "const" in node:
        constant = node.pop("const")
        node["enum"] = [v for v in node.get("enum", [constant]) if same(v, constant)]
    if reference is not None:
        if reference in through:
            raise InvalidConstraint(f"{reference} refers to itself")
        parts = [resolved(root, reference), *parts]
        through = (*through, reference)
    for part in parts:
        if part is True:
            continue
        other = {"enum": []} if part is False else _merged(root, part, through)
        node = both(node, other)
    return node


def _either(parts: list[Node]) -> Node:
    found = tuple(dict.fromkeys(part for part in parts if part != _NOTHING))
    return found[0] if len(found) == 1 else Or(found)


def _text(value: Any) -> str:
    """Return JSON in the spelling used here: short escapes only. Raises: InvalidConstraint"""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidConstraint("a number is not finite")
    return json.dumps(value, ensure_ascii=False)


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        is_whole = isinstance(value, int) or value.is_integer()
        return {"number", "integer"} if is_whole else {"number"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def _sized(schema: dict[str, Any]) -> Node:
    """Return the texts of a pattern with the right length. Raises: InvalidConstraint"""
    found = found_within(schema["pattern"])
    if "minLength" not in schema and "maxLength" not in schema:
        return found
    size = Many(Chars(ANY), schema.get("minLength", 0), schema.get("maxLength"))
    try:
        return shared(found, size, Effort()) or _NOTHING
    except Undecided as error:
        raise InvalidConstraint(f"a length beside a pattern: {error}") from error


def _string(schema: dict[str, Any]) -> Node:
    if "pattern" in schema:
        # Drop characters that cannot be written, and alternatives that need them.
        inner = without(quoted(_sized(schema)))
    else:
        minimum, maximum = schema.get("minLength", 0), schema.get("maxLength")
        if maximum is not None and maximum < minimum:
            return _NOTHING
        return Cat((literal('"'), Many(_CHARACTER, minimum, maximum), literal('"')))
    if inner == _NOTHING:
        return _NOTHING
    return Cat((literal('"'), inner, literal('"')))


def _name_outside(named: Mapping[str, Any]) -> Node:
    """Return the JSON strings of all names except these."""
    if any(ord(c) < 32 for name in named for c in name):
        raise InvalidConstraint(
            "names with control characters beside other names are not supported"
        )
    return Cat((literal('"'), _text_outside(sorted(named)), literal('"')))


def _text_outside(names: list[str]) -> Node:
    """Return the inside of a JSON string, for all texts except these."""
    anything = Many(_CHARACTER, 0, None)
    heads = sorted({name[0] for name in names if name})
    other = Chars(outside(ranges("".join(heads)))) if heads else Chars(ANY)
    branches: list[Node] = [Cat((quoted(other), anything))]
    if "" not in names:
        branches.append(Cat(()))
    for head in heads:
        rests = [name[1:] for name in names if name[:1] == head]
        branches.append(Cat((quoted(literal(head)), _text_outside(rests))))
    return Or(tuple(branches))


def are_apart(root: Any, branches: list[Any]) -> bool:
    """Return whether types and constants show that no value fits two branches of a node."""
    try:
        return _are_apart([_merged(root, branch) for branch in branches if branch is not False])
    except InvalidConstraint:
        return False


def _are_apart(parts: list[dict[str, Any]]) -> bool:
    """Return whether types and constants show that no value fits two of these schemas."""
    return all(_is_apart(one, other) for i, one in enumerate(parts) for other in parts[i + 1 :])


def _is_apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    kinds = [_kinds(one), _kinds(other)]
    if not kinds[0] & kinds[1]:
        return True
    if _values(one) is not None and _values(other) is not None:
        return not any(same(a, b) for a in _values(one) or () for b in _values(other) or ())
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    if kinds[0] != {"object"} or kinds[1] != {"object"}:
        return False
    members = [one.get("properties", {}), other.get("properties", {})]
    return any(
        isinstance(members[0].get(name), dict)
        and isinstance(members[1].get(name), dict)
        and "$ref" not in members[0][name]
        and "$ref" not in members[1][name]
        and _is_apart(members[0][name], members[1][name])
        for name in shared
    )


def _kinds(schema: dict[str, Any]) -> set[str]:
    values = _values(schema)
    if values is not None:
        return {kind for value in values for kind in _types_of(value)}
    kinds = schema.get("type", _TYPES)
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    return found | {"integer"} if "number" in found else found


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found
