"""Passes "not" and "oneOf": rewrites exclusions as what a value must meet instead.

"Exactly one of" is "any of" if no two branches overlap; if two do, each excludes the other. Source:
https://json-schema.org/draft/2020-12/json-schema-core (10.2.1).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.rewriting.automaton import Undecided
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.negation import opposite
from dovetail_grammars.rewriting.tree import (
    KIND_OF,
    KINDS,
    ORIGIN,
    Schema,
    all_of,
    any_of,
    escaped,
    kinds_of,
    origin,
    with_parts,
)
from dovetail_grammars.rewriting.values import kind_of

MAX_OVERLAPS = 200
MAX_NESTED = 3
MAX_PLACES = 16
"""The maximum number of places of constants to compare."""
MAX_COMPARED = 2_000
"""Maximum pairs of branches to compare; beyond it a long union is narrowed instead."""
MAX_RIVALS = 500_000
"""Maximum pairs that may overlap at all; beyond it the union is refused."""
_SETTLED = frozenset(("type", "enum", "const", "$ref", "allOf"))
"""Keywords of a branch next to which another `type` would be ignored or change nothing."""


def without_not(node: Schema, context: Context) -> Any:
    """Return a node with the negation instead of `not`. Raises: InvalidConstraint"""
    if "not" not in node:
        return node
    at = f"{origin(node)}/not"
    rest = {k: v for k, v in node.items() if k != "not"}
    names = list(node.get("properties", ()))
    try:
        part = opposite(node["not"], context, at, names)
    except Undecided as error:
        what = f'the keyword "not" is not enforced here: {error}'
        raise InvalidConstraint(what, at) from error
    return False if part is False else with_parts(rest, part)


def without_one_of(node: Schema, context: Context) -> Any:
    """Return a node with `anyOf` instead of `oneOf`. Raises: InvalidConstraint"""
    if "oneOf" not in node:
        return node
    at = f"{origin(node)}/oneOf"
    rest = {k: v for k, v in node.items() if k != "oneOf"}
    given = [branch for branch in node["oneOf"] if branch is not False]
    rest, branches = _typed(rest, given)
    needed = {ORIGIN: at, "required": node["required"]} if "required" in node else True
    taken = any_of(_alone(branches, given, needed, context, at), at)
    if taken is False:
        return False
    is_alone = not {"anyOf", "allOf", "$ref"} & set(rest)  # these list members that come first
    if is_alone and isinstance(taken, Mapping) and set(taken) == {"$comment", "anyOf"}:
        return {**rest, "anyOf": taken["anyOf"]}
    return with_parts(rest, taken)


def _typed(node: Schema, branches: list[Any]) -> tuple[Schema, list[Any]]:
    """Return a node and its branches without the types that two branches accept completely."""
    kinds = kinds_of(node)
    open_to = Counter(k for branch in branches for k in kinds if _takes_all(branch, k))
    given = node.get("type", list(KINDS))
    said = [given] if isinstance(given, str) else given
    left = [name for name in said if open_to["number" if name == "integer" else name] < 2]
    if len(left) == len(said) and "type" not in node:
        return node, branches
    if not left:
        return node, []
    typed = [
        {**one, "type": left} if isinstance(one, dict) and not _SETTLED & set(one) else one
        for one in branches
    ]
    return {**node, "type": left}, typed


def _takes_all(branch: Any, kind: str) -> bool:
    """Return whether a branch certainly accepts every value of a type."""
    if not isinstance(branch, Mapping):
        return branch is True
    return all(k == ORIGIN or KIND_OF.get(k, kind) != kind for k in branch)


def _alone(
    branches: list[Any], given: list[Any], needed: Any, context: Context, at: str
) -> list[Any]:
    """Return each branch without the values that others accept. `given`: the same without types;
    `needed`: the required members of the parent node."""
    whole = [all_of([branch, needed], at) for branch in branches]
    rivals = _rivals(whole, context)
    num_rivals = sum(map(len, rivals))
    if num_rivals > MAX_RIVALS:
        raise _TooManyOverlaps("too many branches of oneOf overlap", at)
    if num_rivals <= MAX_COMPARED:
        with contextlib.suppress(_TooManyOverlaps):
            return list(_without_others(branches, whole, whole, rivals, given, context, at))
    conditions = _conditions(whole, rivals, context, at)
    narrower = [all_of([*both], at) for both in zip(branches, conditions, strict=True)]
    fewer = [all_of([branch, needed], at) for branch in narrower]
    size = len(branches)
    rivals = [  # a value of a narrower branch must not meet another original branch
        [other - size for other in group if other >= size and other - size != number]
        for number, group in enumerate(_rivals([*fewer, *whole], context)[:size])
    ]
    return list(_without_others(narrower, fewer, whole, rivals, given, context, at))


class _TooManyOverlaps(InvalidConstraint):
    """More pairs of branches overlap than can be separated one by one."""


def _without_others(
    branches: list[Any],
    own: list[Any],
    others: list[Any],
    rivals: list[list[int]],
    given: list[Any],
    context: Context,
    at: str,
) -> Iterator[Any]:
    """Yield branches without the values that their rivals accept. `own`, `others`: each branch with
    the parent's requirements, as a branch and as a rival."""
    names = sorted({name for part in branches for name in _names(part, context)})
    num_overlaps = 0
    for number, branch in enumerate(branches):
        parts = [branch]
        for other_number in rivals[number]:
            if context.are_apart(own[number], others[other_number]):
                continue
            num_overlaps += 1
            if num_overlaps > MAX_OVERLAPS:
                raise _TooManyOverlaps("too many branches of oneOf overlap", at)
            try:
                parts.append(opposite(given[other_number], context, at, names))
            except Undecided as error:
                what = "the branches of oneOf overlap and cannot be distinguished"
                raise InvalidConstraint(f"{what}: {error}", f"{at}/{other_number}") from error
        yield all_of(parts, at)


def _conditions(
    branches: list[Any], rivals: list[list[int]], context: Context, at: str
) -> list[Any]:
    """Return for each branch of a long union a condition that separates it from many others. It
    requires the member that is constant in most branches, and forbids members that others require.
    This accepts fewer values."""
    found = [_constants(branch, context, 0, has_all=True) for branch in branches]
    counts = Counter(name for one in found for name in one if name.count("/") == 1)
    common = {f"/{escaped(name)}": name for branch in branches for name in _names(branch, context)}
    known = [name for name, count in counts.most_common() if name in common and count > 1]
    needs = [_needed(branch, context) for branch in branches]
    conditions: list[Any] = []
    for number, one in enumerate(found):
        if needs[number] is None:
            conditions.append(True)
            continue
        more: Schema = {ORIGIN: at}
        wanted = next((common[name] for name in known if name in one), None)
        own = (needs[number] or set()) | ({wanted} if wanted is not None else set())
        if wanted is not None:
            more["required"] = [wanted]
        others = Counter(n for r in rivals[number] for n in (needs[r] or set()) - own)
        absent = sorted(name for name in others if f"/{escaped(name)}" in counts)
        if absent:
            more["properties"] = dict.fromkeys(absent, False)
        context.budget.spend(1, at)
        conditions.append(more)
    return conditions


def _needed(branch: Any, context: Context) -> set[str] | None:
    """Return the required members of a branch for objects, None for other branches."""
    if context.kinds(branch) != {"object"}:
        return None
    nodes = [part for part in context.parts(branch) if isinstance(part, Mapping)]
    return {name for node in nodes for name in node.get("required", ())}


def _rivals(branches: list[Any], context: Context) -> list[list[int]]:
    """Return for each branch the others that its constants do not exclude, in order.

    Each branch is indexed once, since comparing every pair of a long union is too slow.
    """
    groups = [set(range(len(branches))) - {number} for number in range(len(branches))]
    indexes = (_by_members(branches, context), _by_absence(branches, context))
    for index in (*_by_constants(branches, context), *indexes):
        groups = [
            group & index[number] if number in index else group
            for number, group in enumerate(groups)
        ]
    return [sorted(group) for group in groups]


def _by_constants(branches: list[Any], context: Context) -> Iterator[dict[int, set[int]]]:
    """Yield, for each place with constants in several branches, the branches with a constant there
    and for each of them the branches that may have the same one."""
    found = [_constants(branch, context, 0) for branch in branches]
    allowed = [_constants(branch, context, 0, has_all=True) for branch in branches]
    counts = Counter(name for one in found for name in one)
    for name, count in counts.most_common(MAX_PLACES):
        if count < 2:
            return
        by_value: dict[Any, set[int]] = {}
        for number, one in enumerate(allowed):
            for value in one.get(name, ()):
                by_value.setdefault(value, set()).add(number)
        unknown = {number for number, one in enumerate(allowed) if name not in one}
        yield {
            number: unknown.union(*(by_value.get(value, set()) for value in one[name]))
            for number, one in enumerate(found)
            if name in one
        }


def _by_members(branches: list[Any], context: Context) -> dict[int, set[int]]:
    """Return for branches with required members the branches that may have all of these."""
    everyone = set(range(len(branches)))
    needed: dict[int, set[str]] = {}
    known: dict[str, set[int]] = {}
    closed: set[int] = set()
    for number, branch in enumerate(branches):
        nodes = [part for part in context.parts(branch) if isinstance(part, Mapping)]
        if context.kinds(branch) != {"object"}:
            continue
        needed[number] = {name for node in nodes for name in node.get("required", ())}
        ends = [n for n in nodes if n.get("additionalProperties") is False]
        if ends and not ends[0].get("patternProperties"):
            closed.add(number)
            for name in ends[0].get("properties", ()):
                known.setdefault(name, set()).add(number)
    opened = everyone - closed
    return {
        number: everyone.intersection(*(opened | known.get(name, set()) for name in names))
        for number, names in needed.items()
    }


def _by_absence(branches: list[Any], context: Context) -> dict[int, set[int]]:
    """Return for object branches the branches that allow their required members, and require none
    that they forbid."""
    everyone = set(range(len(branches)))
    needs = {n: found for n in everyone if (found := _needed(branches[n], context)) is not None}
    lacks = {n: _absent(branches[n], context) for n in needs}
    needing: dict[str, set[int]] = {}
    lacking: dict[str, set[int]] = {}
    for number in needs:
        for name in needs[number]:
            needing.setdefault(name, set()).add(number)
        for name in lacks[number]:
            lacking.setdefault(name, set()).add(number)
    if not lacking:
        return {}
    return {
        number: everyone.difference(
            *(lacking.get(name, ()) for name in needs[number]),
            *(needing.get(name, ()) for name in lacks[number]),
        )
        for number in needs
    }


def _absent(branch: Any, context: Context) -> set[str]:
    nodes = [part for part in context.parts(branch) if isinstance(part, Mapping)]
    members = [one for node in nodes for one in node.get("properties", {}).items()]
    return {name for name, schema in members if schema is False}


def _constants(
    branch: Any, context: Context, depth: int, *, has_all: bool = False
) -> dict[str, frozenset[Any]]:
    """Return the constants of a branch by place: "" is the value itself, "/NAME" a required member
    (with `has_all` any member) if it accepts only objects, "/0" the first item of a list that has
    one."""
    nodes = [part for part in context.parts(branch) if isinstance(part, Mapping)]
    found: dict[str, frozenset[Any]] = {}
    for listed in filter(None, map(_listed, nodes)):
        found[""] = listed
    if found or depth >= MAX_NESTED:
        return found
    inner: list[tuple[str, Any]] = []
    kinds = context.kinds(branch)
    if kinds == {"object"}:
        needed = {name for node in nodes for name in node.get("required", ())}
        members = [one for node in nodes for one in node.get("properties", {}).items()]
        inner = [(escaped(n), schema) for n, schema in members if has_all or n in needed]
    elif kinds == {"array"}:
        min_items = max(node.get("minItems", 0) for node in nodes)
        heads = [(at, s) for node in nodes for at, s in enumerate(node.get("prefixItems", ()))]
        inner = [(str(at), schema) for at, schema in heads if at < min_items]
    for name, schema in inner:
        below = _constants(schema, context, depth + 1)
        found |= {f"/{name}{at}": values for at, values in below.items()}
    return found


def _listed(node: Mapping[str, Any]) -> frozenset[Any] | None:
    """Return the hashable constants of a node, if it has only such."""
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if values is None or any(isinstance(value, list | dict) for value in values):
        return None
    return frozenset((kind_of(value), value) for value in values)


def _names(schema: Any, context: Context) -> set[str]:
    """Return the names of members that a schema lists or requires."""
    return {
        name
        for part in context.parts(schema)
        if isinstance(part, Mapping)
        for name in (*part.get("properties", ()), *part.get("required", ()))
    }
