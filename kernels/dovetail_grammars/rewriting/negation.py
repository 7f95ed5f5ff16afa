"""Pass "not": negates schemas, without using `not`.

Every keyword constrains values of one type, so its negation is a schema again: "not at least 3" is
a number below 3. A value breaks a schema by breaking one of its keywords. Keywords without such a
negation (a format, multipleOf) are left out of the alternatives: all values are still valid, but
not every valid value is generated. If no alternative is left, `not` is refused. Source:
https://json-schema.org/draft/2020-12/json-schema-core (10.2.1), De Morgan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail_grammars.regex import (
    ANY,
    ANYTHING,
    NOTHING,
    Cat,
    Chars,
    Node,
    Or,
    literal,
    outside,
    ranges,
    written,
)
from dovetail_grammars.rewriting.automaton import Undecided, other_texts, searched
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.tree import (
    KIND_OF,
    KINDS,
    ORIGIN,
    Schema,
    all_of,
    any_of,
    is_any,
    resolved,
)
from dovetail_grammars.rewriting.values import kind_of

MAX_DEPTH = 24
MAX_LETTERS = 4_000
_OPPOSITES: dict[str, tuple[str, int]] = {
    "minLength": ("maxLength", -1),
    "maxLength": ("minLength", 1),
    "minItems": ("maxItems", -1),
    "maxItems": ("minItems", 1),
    "minProperties": ("maxProperties", -1),
    "maxProperties": ("minProperties", 1),
    "minimum": ("exclusiveMaximum", 0),
    "maximum": ("exclusiveMinimum", 0),
    "exclusiveMinimum": ("maximum", 0),
    "exclusiveMaximum": ("minimum", 0),
}


def opposite(
    schema: Any, context: Context, at: str, names: Iterable[str] = (), depth: int = 0
) -> Any:
    """Return a schema of values that do not meet this one. Raises: Undecided

    `names` are further names that members may have. `at` is the pointer of the schema.
    """
    if isinstance(schema, bool):
        return not schema
    if depth > MAX_DEPTH:
        raise Undecided("it is nested too deep, or refers to itself")
    context.budget.spend(len(schema), at)
    return _Opposite(context, at, tuple(names), depth).of(schema)


class _Opposite:
    def __init__(self, context: Context, at: str, names: tuple[str, ...], depth: int) -> None:
        self._context = context
        self._at = at
        self._names = names
        self._depth = depth

    def of(self, node: Mapping[str, Any]) -> Any:
        branches: list[Any] = []
        left_out: list[Undecided] = []
        keywords = [k for k in node if k not in (ORIGIN, "$defs")]
        for keyword in keywords:
            try:
                branches += self._keyword(keyword, node)
            except Undecided as error:
                left_out.append(error)
        branches = [branch for branch in branches if branch is not False]
        if left_out and not branches:
            raise left_out[0]
        return any_of(branches, self._at)

    def _inner(self, schema: Any) -> Any:
        return opposite(schema, self._context, self._at, self._names, self._depth + 1)

    def _node(self, **keywords: Any) -> Schema:
        return {ORIGIN: self._at, **keywords}

    def _keyword(self, keyword: str, node: Mapping[str, Any]) -> list[Any]:
        """Return the values that break one keyword, as branches. Raises: Undecided"""
        said = node[keyword]
        if keyword in _OPPOSITES:
            other, step = _OPPOSITES[keyword]
            bound = said + step if step else said
            return [] if bound == -1 and step else [self._typed(keyword, **{other: bound})]
        match keyword:
            case "type":
                return self._type(said)
            case "const":
                return other_values([said], self._at)
            case "enum":
                return other_values(said, self._at)
            case "pattern":
                return self._pattern(said)
            case "$ref":
                return [self._inner(resolved(self._context.root, said))]
            case "not":
                return [said]
            case "allOf":
                return [self._inner(part) for part in said]
            case "anyOf":
                return [all_of([self._inner(part) for part in said], self._at)]
            case "oneOf":  # values that meet several branches are left out
                return [all_of([self._inner(part) for part in said], self._at)]
            case "if":
                return self._if(node)
            case "then" | "else":
                return []
        if KIND_OF.get(keyword) == "array":
            return self._array(keyword, node)
        return self._object(keyword, node)

    def _typed(self, keyword: str, **keywords: Any) -> Schema:
        return self._node(type=KIND_OF[keyword], **keywords)

    def _type(self, said: Any) -> list[Any]:
        names = {said} if isinstance(said, str) else set(said)
        if "integer" in names:
            names.add("number")  # numbers with a fraction are left out
        others = [kind for kind in KINDS if kind not in names]
        return [self._node(type=others)] if others else []

    def _pattern(self, said: str) -> list[Any]:
        found = other_texts(searched(said), self._context.effort)
        return [] if found is None else [self._node(type="string", pattern=pattern_of(found))]

    def _if(self, node: Mapping[str, Any]) -> list[Any]:
        then, other = node.get("then", True), node.get("else", True)
        branches: list[Any] = []
        if not is_any(then):
            branches.append(all_of([node["if"], self._inner(then)], self._at))
        if not is_any(other):
            branches.append(all_of([self._inner(node["if"]), self._inner(other)], self._at))
        return branches

    def _array(self, keyword: str, node: Mapping[str, Any]) -> list[Any]:
        said = node[keyword]
        match keyword:
            case "items" if "prefixItems" not in node:
                return [self._node(type="array", contains=self._inner(said))]
            case "prefixItems":
                return [
                    self._node(
                        type="array",
                        minItems=at + 1,
                        prefixItems=[*([True] * at), self._inner(head)],
                    )
                    for at, head in enumerate(said)
                    if not is_any(head)
                ]
            case "contains" if node.get("minContains", 1) == 1 and "maxContains" not in node:
                return [self._node(type="array", items=self._inner(said))]
            case "minContains" | "maxContains":
                return []
        raise Undecided(f'what breaks "{keyword}" cannot be described')

    def _object(self, keyword: str, node: Mapping[str, Any]) -> list[Any]:
        said = node[keyword]
        match keyword:
            case "properties":
                return self._members(node)
            case "required":
                # If it has a schema, the branch of "properties" covers absence as well.
                others = [name for name in said if name not in node.get("properties", {})]
                return [self._member(name, False, is_needed=False) for name in others]
            case "additionalProperties":
                return self._others(node)
            case "dependentRequired":
                return [
                    self._node(type="object", required=[name], properties={other: False})
                    for name, others in said.items()
                    for other in others
                    if other != name
                ]
            case "dependentSchemas":
                return [
                    all_of([self._node(type="object", required=[n]), self._inner(s)], self._at)
                    for n, s in said.items()
                ]
        raise Undecided(f'what breaks "{keyword}" cannot be described')

    def _members(self, node: Mapping[str, Any]) -> list[Any]:
        """Return objects with a member that breaks its schema, or without a required one."""
        branches: list[Any] = []
        undecided: list[Undecided] = []
        for name, part in node["properties"].items():
            is_needed = name in node.get("required", ())
            try:
                broken = False if is_any(part) else self._inner(part)
            except Undecided as error:
                undecided.append(error)
                broken = False
            if not is_any(part) or is_needed:
                branches.append(self._member(name, broken, is_needed=not is_needed))
        branches = [branch for branch in branches if branch is not False]
        if undecided and not branches:
            raise undecided[0]
        return branches

    def _member(self, name: str, schema: Any, *, is_needed: bool) -> Any:
        needed = {"required": [name]} if is_needed else {}
        if schema is False and is_needed:
            return False
        return self._node(type="object", properties={name: schema}, **needed)

    def _others(self, node: Mapping[str, Any]) -> list[Any]:
        """Return objects with a member of another name, among the known names."""
        names = [name for name in self._names if name not in node.get("properties", ())]
        if "patternProperties" in node or not names:
            raise Undecided('what breaks "additionalProperties" cannot be described')
        inner = self._inner(node["additionalProperties"])
        members = [self._member(name, inner, is_needed=True) for name in names]
        return [branch for branch in members if branch is not False]


def other_values(values: list[Any], at: str) -> list[Any]:
    """Return schemas of all values except these; other lists and objects only if none is listed."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    others = [kind for kind in KINDS if kind not in by_kind]
    branches: list[Any] = [{ORIGIN: at, "type": others}] if others else []
    for kind, listed in by_kind.items():
        match kind:
            case "string":
                pattern = pattern_of(texts_outside(listed))
                branches.append({ORIGIN: at, "type": "string", "pattern": pattern})
            case "number":
                branches += _numbers_between(sorted(set(listed)), at)
            case "boolean":
                branches += [{ORIGIN: at, "const": b} for b in (True, False) if b not in listed]
            case "array" if [] in listed and len(listed) == 1:
                branches.append({ORIGIN: at, "type": "array", "minItems": 1})
    return branches


def _numbers_between(listed: list[Any], at: str) -> list[Any]:
    lows = [None, *listed]
    highs = [*listed, None]
    return [
        {
            ORIGIN: at,
            "type": "number",
            **({} if low is None else {"exclusiveMinimum": low}),
            **({} if high is None else {"exclusiveMaximum": high}),
        }
        for low, high in zip(lows, highs, strict=True)
    ]


def texts_outside(texts: list[str]) -> Node:
    """Return all texts except these. Raises: Undecided"""
    if sum(map(len, texts)) > MAX_LETTERS or max(map(len, texts), default=0) > 120:
        raise Undecided("the texts are too long")
    return _outside(sorted(set(texts)))


def _outside(texts: list[str]) -> Node:
    heads = sorted({text[0] for text in texts if text})
    branches: list[Node] = [] if "" in texts else [NOTHING]
    branches.append(Cat((Chars(outside(ranges("".join(heads))) if heads else ANY), ANYTHING)))
    for head in heads:
        rests = [text[1:] for text in texts if text[:1] == head]
        branches.append(Cat((literal(head), _outside(rests))))
    return Or(tuple(branches))


def pattern_of(node: Node) -> str:
    """Return the schema pattern that matches exactly these whole texts."""
    return f"^(?:{written(node)})$"
