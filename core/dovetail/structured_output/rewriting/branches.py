"""Passes "not" and "oneOf": what a value may not meet becomes what it meets instead.

Exactly one of several is any of them where no two overlap; where two do, each is taken without the
other. Source: https://json-schema.org/draft/2020-12/json-schema-core (10.2.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.rewriting.automaton import Undecided
from dovetail.structured_output.rewriting.context import Context
from dovetail.structured_output.rewriting.negation import opposite
from dovetail.structured_output.rewriting.tree import (
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
from dovetail.structured_output.rewriting.values import kind_of

MAX_OVERLAPS = 200
MAX_NESTED = 3
_SETTLED = frozenset(("type", "enum", "const", "$ref", "allOf"))
"""Keywords of a branch beside which another type would not be read, or changes nothing."""


def without_not(node: Schema, context: Context) -> Any:
    """Return a node with the opposite of `not` in its place. Raises: InvalidConstraint"""
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
    """Return a node with `anyOf` in the place of `oneOf`. Raises: InvalidConstraint"""
    if "oneOf" not in node:
        return node
    at = f"{origin(node)}/oneOf"
    rest = {k: v for k, v in node.items() if k != "oneOf"}
    given = [branch for branch in node["oneOf"] if branch is not False]
    rest, branches = _typed(rest, given)
    taken = any_of(list(_alone(branches, given, context, at)), at)
    if taken is False:
        return False
    is_alone = not {"anyOf", "allOf", "$ref"} & set(rest)  # these name members, which come first
    if is_alone and isinstance(taken, Mapping) and set(taken) == {"$comment", "anyOf"}:
        return {**rest, "anyOf": taken["anyOf"]}
    return with_parts(rest, taken)


def _typed(node: Schema, branches: list[Any]) -> tuple[Schema, list[Any]]:
    """Return a node and its branches with the types that are left: not those whose every value two
    branches take."""
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
    """Return whether a branch surely takes every value of a type."""
    if not isinstance(branch, Mapping):
        return branch is True
    return all(k == ORIGIN or KIND_OF.get(k, kind) != kind for k in branch)


def _alone(branches: list[Any], given: list[Any], context: Context, at: str) -> Iterator[Any]:
    """Yield each branch without what others meet as well. `given`: the same without types."""
    names = sorted({name for part in branches for name in _names(part, context)})
    num_overlaps = 0
    rivals = _rivals(branches, context)
    for number, branch in enumerate(branches):
        parts = [branch]
        for other_number in rivals[number]:
            other = branches[other_number]
            if context.are_apart(branch, other):
                continue
            num_overlaps += 1
            if num_overlaps > MAX_OVERLAPS:
                raise InvalidConstraint("too many branches of oneOf overlap", at)
            try:
                parts.append(opposite(given[other_number], context, at, names))
            except Undecided as error:
                what = "the branches of oneOf overlap and cannot be distinguished"
                raise InvalidConstraint(f"{what}: {error}", f"{at}/{other_number}") from error
        yield all_of(parts, at)


def _rivals(branches: list[Any], context: Context) -> list[list[int]]:
    """Return for each branch the others that its constants do not tell apart from it, in order.

    One look at each branch finds those of a long union, where every pair would be too many.
    """
    groups = [set(range(len(branches))) - {number} for number in range(len(branches))]
    for index in (_by_constants(branches, context), _by_members(branches, context)):
        groups = [
            group & index[number] if number in index else group
            for number, group in enumerate(groups)
        ]
    return [sorted(group) for group in groups]


def _by_constants(branches: list[Any], context: Context) -> dict[int, set[int]]:
    """Return for branches with a constant where most have one: who may have the same one there."""
    found = [_constants(branch, context, 0) for branch in branches]
    counts = Counter(name for one in found for name in one)
    name = counts.most_common(1)[0][0] if counts else ""
    by_value: dict[Any, set[int]] = {}
    for number, one in enumerate(found):
        for value in one.get(name, ()):
            by_value.setdefault(value, set()).add(number)
    unknown = {number for number, one in enumerate(found) if name not in one}
    return {
        number: unknown.union(*(by_value[value] for value in one[name]))
        for number, one in enumerate(found)
        if name in one
    }


def _by_members(branches: list[Any], context: Context) -> dict[int, set[int]]:
    """Return for branches of objects that need members: who may have all of these."""
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


def _constants(branch: Any, context: Context, depth: int) -> dict[str, frozenset[Any]]:
    """Return the constants of a branch, by where they are: "" is the value itself, "/NAME" a member
    that it needs, where it takes objects alone."""
    nodes = [part for part in context.parts(branch) if isinstance(part, Mapping)]
    found: dict[str, frozenset[Any]] = {}
    for listed in filter(None, map(_listed, nodes)):
        found[""] = listed
    if not found and depth < MAX_NESTED and context.kinds(branch) == {"object"}:
        needed = {name for node in nodes for name in node.get("required", ())}
        for node in nodes:
            for name in needed & set(node.get("properties", ())):
                inner = _constants(node["properties"][name], context, depth + 1)
                found |= {f"/{escaped(name)}{at}": values for at, values in inner.items()}
    return found


def _listed(node: Mapping[str, Any]) -> frozenset[Any] | None:
    """Return the constants of a node, if it has such that can be looked up."""
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if values is None or any(isinstance(value, list | dict) for value in values):
        return None
    return frozenset((kind_of(value), value) for value in values)


def _names(schema: Any, context: Context) -> set[str]:
    """Return the names of members that a schema lists or needs."""
    return {
        name
        for part in context.parts(schema)
        if isinstance(part, Mapping)
        for name in (*part.get("properties", ()), *part.get("required", ()))
    }
