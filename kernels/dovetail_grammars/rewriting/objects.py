"""Passes for names: `propertyNames`, overlapping `patternProperties`, `unevaluatedProperties`.

Allowed names become `properties` if they are a list, else a pattern. Patterns that match a common
name are made disjoint. A member is evaluated if an adjacent keyword, or a subschema that applies,
names it; the other members must meet `unevaluatedProperties`. Source:
https://json-schema.org/draft/2020-12/json-schema-core (10.3.2, 11.3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.json_formats import FORMATS
from dovetail_grammars.regex import ANY, ANYTHING, Cat, Chars, Many, Node, Or, literal
from dovetail_grammars.regex_reader import parse
from dovetail_grammars.rewriting.automaton import (
    Effort,
    Undecided,
    conditions,
    left,
    looks,
    matches,
    other_texts,
    searched,
    shared,
    without_looks,
)
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.negation import opposite, pattern_of
from dovetail_grammars.rewriting.tree import (
    KINDS,
    ORIGIN,
    Schema,
    all_of,
    any_of,
    is_any,
    kinds_of,
    origin,
    resolved,
    with_parts,
)

MAX_PATTERNS = 12
MAX_ALTERNATIVES = 32
MAX_DEPTH = 24
MAX_COUNTED = 24
"""The maximum length up to which lengths next to a pattern are exact."""
MAX_LOOKAHEAD = 5_000
"""The work limit, in parts of expressions, for removing lookahead from one pattern."""
_NOTHING = Or(())


def without_property_names(node: Schema, context: Context) -> Any:
    """Return a node with names that are listed or match a pattern. Raises: InvalidConstraint"""
    if "propertyNames" not in node:
        return node
    at = f"{origin(node)}/propertyNames"
    rest = {k: v for k, v in node.items() if k != "propertyNames"}
    values = context.values(node["propertyNames"])
    try:
        if values is not None:
            return _listed(rest, [v for v in values if isinstance(v, str)], context, at)
        return _patterned(rest, _texts(node["propertyNames"], context, 0), context, at)
    except Undecided as error:
        what = f'the keyword "propertyNames" is not enforced here: {error}'
        raise InvalidConstraint(what, at) from error


def _listed(node: Schema, names: list[str], context: Context, at: str) -> Schema:
    ordered = [name for name in node.get("properties", ()) if name in names]
    ordered += [name for name in names if name not in ordered]
    context.budget.spend(len(ordered), at)
    members = {
        name: all_of(list(context.members_at(node, name, is_strict=True)), at) for name in ordered
    }
    rest = {k: v for k, v in node.items() if k != "patternProperties"}
    return {**rest, "properties": members, "additionalProperties": False}


def _patterned(node: Schema, texts: Node, context: Context, at: str) -> Schema:
    members = {
        name: schema if matches(texts, name, context.effort) else False
        for name, schema in node.get("properties", {}).items()
    }
    rest: Node | None = texts
    patterns: Schema = {}
    for pattern, schema in node.get("patternProperties", {}).items():
        both = shared(searched(pattern), texts, context.effort)
        if both is not None:
            patterns[pattern_of(both)] = schema
        rest = None if rest is None else left(rest, searched(pattern), context.effort)
    if rest is not None and members and not is_any(node.get("additionalProperties", True)):
        rest = left(rest, Or(tuple(map(literal, members))), context.effort)
    if rest is not None and node.get("additionalProperties") is not False:
        patterns[pattern_of(rest)] = node.get("additionalProperties", True)
    patterned = {**node, "patternProperties": patterns, "additionalProperties": False}
    return {**patterned, "properties": members} if members else patterned


def _texts(schema: Any, context: Context, depth: int) -> Node:
    """Return the texts that are valid under a schema. Raises: Undecided"""
    if schema is True:
        return ANYTHING
    if schema is False or depth > MAX_DEPTH:
        return _NOTHING
    texts: Node = ANYTHING
    for keyword in schema:
        part = _of_keyword(keyword, schema, context, depth + 1)
        if part is not None and part != ANYTHING:
            both = part if texts == ANYTHING else shared(texts, part, context.effort)
            texts = _NOTHING if both is None else both
    return _shortened(texts, schema["maxLength"], context) if "maxLength" in schema else texts


def _shortened(node: Node, max_chars: int, context: Context) -> Node:
    """Return the texts of at most `max_chars` characters. If `max_chars` is large and there are
    unlimited repeats, the repeats share the remaining length equally. Raises: Undecided"""
    repeats, room = _repeats(node), max_chars - _min_length(node)
    if max_chars <= MAX_COUNTED or not repeats:
        both = shared(node, Many(Chars(ANY), 0, max_chars), context.effort)
        return _NOTHING if both is None else both
    if room < 0:
        raise Undecided("a text is longer than maxLength")
    return _repeated(node, room // repeats)


def _min_length(node: Node) -> int:
    """Return the length of the longest text with unlimited repeats at their minimum."""
    match node:
        case Cat(parts):
            return sum(map(_min_length, parts))
        case Or(parts):
            return max(map(_min_length, parts), default=0)
        case Many(part, minimum, maximum):
            return _min_length(part) * (minimum if maximum is None else maximum)
    return 1


def _repeats(node: Node) -> int:
    """Return the characters added by one more round of every unlimited repeat."""
    match node:
        case Cat(parts):
            return sum(map(_repeats, parts))
        case Or(parts):
            return max(map(_repeats, parts), default=0)
        case Many(part, minimum, None):
            return _min_length(part) + _repeats(part) * (minimum + 1)
        case Many(part, _, maximum):
            return _repeats(part) * (maximum or 0)
    return 0


def _repeated(node: Node, more: int) -> Node:
    """Return an expression with unlimited repeats limited to `more` extra rounds."""
    match node:
        case Cat(parts):
            return Cat(tuple(_repeated(part, more) for part in parts))
        case Or(parts):
            return Or(tuple(_repeated(part, more) for part in parts))
        case Many(part, minimum, None):
            if _repeats(part):
                raise Undecided("repeats within repeats have no length")
            return Many(part, minimum, minimum + more)
        case Many(part, minimum, maximum):
            return Many(_repeated(part, more), minimum, maximum)
    return node


def _of_keyword(keyword: str, node: Schema, context: Context, depth: int) -> Node | None:
    """Return the texts that meet one keyword, None for all."""
    said = node[keyword]
    match keyword:
        case "type":
            return None if "string" in ([said] if isinstance(said, str) else said) else _NOTHING
        case "enum":
            return Or(tuple(literal(v) for v in said if isinstance(v, str)))
        case "pattern":
            return without_looks(searched(said), context.effort)
        case "format":
            return parse(FORMATS[said]) if said in FORMATS else None
        case "minLength":
            return Many(Chars(ANY), said, None)
        case "$ref":
            return _texts(resolved(context.root, said), context, depth)
        case "allOf":
            return _texts_of_all(said, context, depth)
        case "anyOf":
            return Or(tuple(_texts(part, context, depth) for part in said))
        case "not":
            others = other_texts(_texts(said, context, depth), context.effort)
            return _NOTHING if others is None else others
        case "oneOf" | "if":
            raise Undecided(f'"{keyword}" of a name')
    return None


def _texts_of_all(parts: list[Any], context: Context, depth: int) -> Node:
    found: Node | None = ANYTHING
    for part in parts:
        found = found and shared(found, _texts(part, context, depth), context.effort)
    return found or _NOTHING


def without_overlaps(node: Schema, context: Context) -> Any:
    """Return a node with patterns that are disjoint. Raises: InvalidConstraint"""
    given = node.get("patternProperties", {})
    if len(given) < 2:
        return node
    at = f"{origin(node)}/patternProperties"
    if len(given) > MAX_PATTERNS:
        raise InvalidConstraint(f"at most {MAX_PATTERNS} patterns are supported", at)
    try:
        return {**node, "patternProperties": _cut(given, context, at)}
    except Undecided as error:
        what = f"two of patternProperties may fit the same name: {error}"
        raise InvalidConstraint(what, at) from error


def _cut(given: Mapping[str, Any], context: Context, at: str) -> Schema:
    """Return disjoint patterns, each with all schemas of the patterns that it came from."""
    effort = context.effort
    found: list[tuple[Node, Any, str | None]] = []
    for pattern, schema in given.items():
        rest: Node | None = searched(pattern)
        is_whole = True
        pieces: list[tuple[Node, Any, str | None]] = []
        for node, known, written in found:
            both = None if rest is None else shared(node, rest, effort)
            if both is None or rest is None:
                pieces.append((node, known, written))
                continue
            is_whole = False
            pieces.append((both, all_of([known, schema], at), None))
            if (other := left(node, rest, effort)) is not None:
                pieces.append((other, known, None))
            rest = left(rest, node, effort)
        if rest is not None:
            pieces.append((rest, schema, pattern if is_whole else None))
        context.budget.spend(len(pieces), at)
        found = pieces
    return {text or pattern_of(node): schema for node, schema, text in found}


def without_lookaround(node: Schema, context: Context) -> Any:
    """Return a node with patterns that have no lookahead. Raises: InvalidConstraint"""
    result = node
    if "pattern" in node:
        at = f"{origin(node)}/pattern"
        patterns = _plain_patterns(node["pattern"], at)
        if patterns != [node["pattern"]]:
            rest = {keyword: said for keyword, said in node.items() if keyword != "pattern"}
            result = with_parts(rest, *({ORIGIN: at, "pattern": one} for one in patterns))
    given = node.get("patternProperties", {})
    at = f"{origin(node)}/patternProperties"
    plain = {pattern: _plain_patterns(pattern, at) for pattern in given}
    if any(len(found) > 1 for found in plain.values()):
        raise InvalidConstraint("the lookahead of a pattern of names takes too much", at)
    if list(given) != [found[0] for found in plain.values()]:
        result = {**result, "patternProperties": _renamed(given, plain, at)}
    return result


def _renamed(given: Schema, plain: dict[str, list[str]], at: str) -> Schema:
    """Return members by their new patterns; schemas of equal patterns are combined."""
    members: Schema = {}
    for pattern, schema in given.items():
        name = plain[pattern][0]
        members[name] = all_of([members[name], schema], at) if name in members else schema
    return members


def _plain_patterns(pattern: str, at: str) -> list[str]:
    """Return patterns without lookahead that must all match; a single one if it is small enough. A
    pattern that cannot be parsed stays unchanged."""
    try:
        tree = searched(pattern)
    except Undecided:
        return [pattern]
    if not looks(tree):
        return [pattern]
    with contextlib.suppress(Undecided):
        return [pattern_of(without_looks(tree, Effort(MAX_LOOKAHEAD)))]
    try:
        return list(map(pattern_of, conditions(tree, Effort())))
    except (Undecided, InvalidConstraint) as error:
        raise InvalidConstraint(str(error), at) from error


def without_counts(node: Schema, context: Context) -> Any:
    """Return a node in which limits on the number of listed members become alternatives by the
    names that are present. A maximum excludes all other names."""
    names, needed = list(node.get("properties", ())), set(node.get("required", ()))
    free = [name for name in names if name not in needed and node["properties"][name] is not False]
    minimum, maximum = node.get("minProperties", 0), node.get("maxProperties")
    if not free or (minimum <= len(needed) and maximum is None):
        return node
    at = f"{origin(node)}/{'minProperties' if maximum is None else 'maxProperties'}"
    rest = {k: v for k, v in node.items() if k not in ("minProperties", "maxProperties")}
    branches: list[Any] = []
    if maximum is not None:
        rest |= {"additionalProperties": False}
        rest.pop("patternProperties", None)
    sizes = _sizes(
        len(free), minimum - len(needed), None if maximum is None else maximum - len(needed)
    )
    if sum(comb(len(free), size) for size in sizes) > MAX_ALTERNATIVES:
        return node
    for size in sizes:
        for chosen in combinations(free, size):
            branch: Schema = {ORIGIN: at, "required": list(chosen)}
            if maximum is not None:
                absent = [name for name in free if name not in chosen]
                branch["properties"] = dict.fromkeys(absent, False)
            branches.append(branch)
    context.budget.spend(len(branches), at)
    return with_parts(rest, any_of([*branches, *_no_object(node, at)], at))


def _sizes(count: int, minimum: int, maximum: int | None) -> list[int]:
    """Return the possible numbers of optional names; without a maximum just the minimum."""
    first = max(0, minimum)
    if maximum is None:
        return [first] if first <= count else []
    return list(range(first, min(maximum, count) + 1))


def _no_object(node: Schema, at: str) -> list[Any]:
    others = [kind for kind in KINDS if kind in kinds_of(node) and kind != "object"]
    return [{ORIGIN: at, "type": others}] if others else []


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """One way to meet a schema: the schemas that must hold, and the names that they evaluate."""

    holds: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    is_all: bool = False

    def joined(self, other: _Evaluated) -> _Evaluated:
        """Return the combination of both."""
        return _Evaluated(
            (*self.holds, *other.holds),
            tuple(dict.fromkeys((*self.names, *other.names))),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            self.is_all or other.is_all,
        )


def without_unevaluated_properties(node: Schema, context: Context) -> Any:
    """Return a node with unevaluatedProperties as alternatives. Raises: InvalidConstraint"""
    if "unevaluatedProperties" not in node:
        return node
    at = f"{origin(node)}/unevaluatedProperties"
    rest = {k: v for k, v in node.items() if k != "unevaluatedProperties"}
    if "additionalProperties" in node or is_any(node["unevaluatedProperties"]):
        return rest
    branches = []
    for way in _ways(rest, context, at, 0):
        closed: Any = True
        if not way.is_all:
            closed = {ORIGIN: at, "additionalProperties": node["unevaluatedProperties"]}
            if way.names:
                closed["properties"] = dict.fromkeys(way.names, True)
            if way.patterns:
                closed["patternProperties"] = dict.fromkeys(way.patterns, True)
        branches.append(all_of([*way.holds, closed], at))
    context.budget.spend(len(branches), at)
    return with_parts(rest, any_of(branches, at))


def _ways(schema: Any, context: Context, at: str, depth: int) -> list[_Evaluated]:
    """Return the ways to meet a schema, by the members that they evaluate."""
    if not isinstance(schema, Mapping):
        return [_Evaluated()]
    if depth > MAX_DEPTH:
        raise InvalidConstraint('"unevaluatedProperties" of a schema that refers to itself', at)
    names = tuple(schema.get("properties", ()))
    patterns = tuple(schema.get("patternProperties", ()))
    is_all = "additionalProperties" in schema or "unevaluatedProperties" in schema
    ways = [_Evaluated((), names, patterns, is_all)]
    groups = [_ways(part, context, at, depth + 1) for part in schema.get("allOf", ())]
    if "$ref" in schema:
        groups.append(_ways(resolved(context.root, schema["$ref"]), context, at, depth + 1))
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            groups.append(_ways_of_branches(schema, keyword, context, at, depth + 1))
    if "if" in schema:
        groups.append(_ways_of_condition(schema, context, at, depth + 1))
    for name, part in schema.get("dependentSchemas", {}).items():
        has = _Evaluated(({ORIGIN: at, "required": [name]},))
        groups.append([_Evaluated(), *(has.joined(w) for w in _ways(part, context, at, depth + 1))])
    for group in groups:
        ways = [one.joined(other) for one in ways for other in group]
        if len(ways) > MAX_ALTERNATIVES:
            raise InvalidConstraint('"unevaluatedProperties" has too many alternatives', at)
    return ways


def _ways_of_branches(
    schema: Mapping[str, Any], keyword: str, context: Context, at: str, depth: int
) -> list[_Evaluated]:
    alone = [
        _Evaluated((part,)).joined(way)
        for part in schema[keyword]
        if part is not False
        for way in _ways(part, context, at, depth)
    ]
    if keyword == "oneOf" or not 1 < len(alone) <= 3:
        return alone
    ways = list(alone)
    for number, one in enumerate(alone):
        ways += [one.joined(other) for other in alone[number + 1 :]]
    return [*ways, alone[0].joined(alone[1]).joined(alone[2])] if len(alone) == 3 else ways


def _ways_of_condition(
    schema: Mapping[str, Any], context: Context, at: str, depth: int
) -> list[_Evaluated]:
    premise = schema["if"]
    met = [
        _Evaluated((premise,)).joined(one).joined(other)
        for one in _ways(premise, context, at, depth)
        for other in _ways(schema.get("then", True), context, at, depth)
    ]
    if "else" not in schema:
        return [*met, _Evaluated()]
    try:
        unmet = _Evaluated((opposite(premise, context, at),))
    except Undecided:
        return met
    return [*met, *(unmet.joined(way) for way in _ways(schema["else"], context, at, depth))]
