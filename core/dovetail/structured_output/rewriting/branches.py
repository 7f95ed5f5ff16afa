"""Passes "not" and "oneOf": what a value may not meet becomes what it meets instead.

Exactly one of several is any of them where no two overlap; where two do, each is taken without the
other. Source: https://json-schema.org/draft/2020-12/json-schema-core (10.2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.rewriting.automaton import Undecided
from dovetail.structured_output.rewriting.context import Context
from dovetail.structured_output.rewriting.negation import opposite
from dovetail.structured_output.rewriting.tree import Schema, all_of, any_of, origin, with_parts

MAX_OVERLAPS = 200


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
    branches = [branch for branch in node["oneOf"] if branch is not False]
    taken = any_of(list(_alone(branches, context, at)), at)
    if taken is False:
        return False
    is_alone = not {"anyOf", "allOf", "$ref"} & set(rest)  # these name members, which come first
    if is_alone and isinstance(taken, Mapping) and set(taken) == {"$comment", "anyOf"}:
        return {**rest, "anyOf": taken["anyOf"]}
    return with_parts(rest, taken)


def _alone(branches: list[Any], context: Context, at: str) -> Iterator[Any]:
    """Yield each branch without what others meet as well."""
    names = sorted({name for part in branches for name in _names(part, context)})
    num_overlaps = 0
    for number, branch in enumerate(branches):
        parts = [branch]
        for other_number, other in enumerate(branches):
            if number == other_number or context.are_apart(branch, other):
                continue
            num_overlaps += 1
            if num_overlaps > MAX_OVERLAPS:
                raise InvalidConstraint("too many branches of oneOf overlap", at)
            try:
                parts.append(opposite(other, context, at, names))
            except Undecided as error:
                what = "the branches of oneOf overlap and cannot be distinguished"
                raise InvalidConstraint(f"{what}: {error}", f"{at}/{other_number}") from error
        yield all_of(parts, at)


def _names(schema: Any, context: Context) -> set[str]:
    """Return the names of members that a schema lists or needs."""
    return {
        name
        for part in context.parts(schema)
        if isinstance(part, Mapping)
        for name in (*part.get("properties", ()), *part.get("required", ()))
    }
