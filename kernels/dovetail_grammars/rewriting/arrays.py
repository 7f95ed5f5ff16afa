"""Passes for lists: `contains`, `uniqueItems`, `unevaluatedItems`.

The first item that meets `contains` must be among the first eight (later ones are valid, but not
generated). Lists of unique values are enumerated if there are few. Source:
https://json-schema.org/draft/2020-12/json-schema-validation (6.4), -core (10.3.1.3, 11.2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.rewriting.automaton import Undecided
from dovetail_grammars.rewriting.context import Context, item_at
from dovetail_grammars.rewriting.negation import opposite
from dovetail_grammars.rewriting.room import has_values
from dovetail_grammars.rewriting.tree import (
    ORIGIN,
    Schema,
    all_of,
    any_of,
    is_any,
    kinds_of,
    origin,
    with_parts,
)
from dovetail_grammars.rewriting.values import same

MAX_PLACES = 8
MAX_LISTS = 400
_BRANCHING = ("anyOf", "oneOf", "if", "contains", "dependentSchemas")


def without_contains(node: Schema, context: Context) -> Any:
    """Return a node with one alternative per position of the contained item.

    Raises: InvalidConstraint
    """
    if "contains" not in node:
        return node
    at = f"{origin(node)}/contains"
    made = {k: v for k, v in node.items() if k not in ("contains", "minContains", "maxContains")}
    least, most = node.get("minContains", 1), node.get("maxContains")
    if least == 0 and most is None:
        return made
    if most is not None and most < least:
        return with_parts(made, _no_list(at))
    if most not in (None, 0, 1) or least > 1 or (most == 1 and least == 0):
        what = "only one item, or one at least, can be asked for by contains"
        raise InvalidConstraint(what, at)
    wanted = node["contains"]
    try:
        other = True if most is None else opposite(wanted, context, at)
    except Undecided as error:
        raise InvalidConstraint(f'"maxContains" is not enforced here: {error}', at) from error
    if most == 0:
        return with_parts(made, {ORIGIN: at, "items": other})
    places = min(MAX_PLACES, node.get("maxItems", MAX_PLACES))
    context.budget.spend(places * places, at)
    branches = [
        {
            ORIGIN: at,
            "type": "array",
            "minItems": place + 1,
            "prefixItems": [*([other] * place), wanted],
            **({} if other is True else {"items": other}),
        }
        for place in range(places)
        if not context.are_apart(item_at(node, place), wanted)
    ]
    return with_parts(made, any_of([*branches, *_no_lists(node, at)], at))


def _no_list(at: str) -> Schema:
    return {ORIGIN: at, "type": ["object", "string", "number", "boolean", "null"]}


def _no_lists(node: Schema, at: str) -> list[Schema]:
    return [_no_list(at)] if kinds_of(node) - {"array"} else []


def without_unique(node: Schema, context: Context) -> Any:
    """Return a node whose unique lists are enumerated, or whose items always differ.

    Other lists keep `uniqueItems`, which is enforced during generation. Raises: InvalidConstraint
    for lists that might be impossible to complete
    """
    if not node.get("uniqueItems"):
        return node
    made = {k: v for k, v in node.items() if k != "uniqueItems"}
    heads, most = node.get("prefixItems", []), node.get("maxItems", math.inf)
    items = node.get("items", True)
    if most <= 1 or (not heads and items is False):
        return made
    if heads and (items is False or most <= len(heads)):
        pairs = itertools.combinations(heads, 2)
        if all(context.are_apart(one, other) for one, other in pairs):
            return made
    at = f"{origin(node)}/uniqueItems"
    parts = [part for part in context.parts(made) if isinstance(part, Mapping)]
    if any("prefixItems" in part or "maxContains" in part for part in parts):
        raise InvalidConstraint('"uniqueItems" is not enforced beside items by position', at)
    items = all_of([part["items"] for part in parts if "items" in part], at)
    values = context.values(items)
    if values is not None:
        return _listed(node, _different(values), context)
    least = max((part.get("minItems", 0) for part in parts), default=0)
    if least > 1 and not has_values(items, least, context):
        what = f"it is not known whether there are {least} different items"
        raise InvalidConstraint(f'"uniqueItems" is not enforced: {what}', at)
    return node


def _different(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(same(value, one) for one in found):
            found.append(value)
    return found


def _listed(node: Schema, values: list[Any], context: Context) -> Schema:
    at = f"{origin(node)}/uniqueItems"
    least, most = node.get("minItems", 0), min(node.get("maxItems", math.inf), len(values))
    sizes = range(least, int(most) + 1)
    bounded = {**node, "items": {ORIGIN: at, "enum": values}, "maxItems": int(most)}
    if kinds_of(node) != {"array"} or sum(math.perm(len(values), k) for k in sizes) > MAX_LISTS:
        return bounded
    lists = [list(one) for size in sizes for one in itertools.permutations(values, size)]
    try:
        kept = [one for one in lists if context.meets(one, node)]
    except Undecided:
        return bounded
    context.budget.spend(len(kept), at)
    return {ORIGIN: origin(node), "enum": kept} if kept else bounded


def without_unevaluated_items(node: Schema, context: Context) -> Any:
    """Return a node with `items` for unevaluated items. Raises: InvalidConstraint"""
    if "unevaluatedItems" not in node:
        return node
    at = f"{origin(node)}/unevaluatedItems"
    made = {k: v for k, v in node.items() if k != "unevaluatedItems"}
    if is_any(node["unevaluatedItems"]):
        return made
    parts = [part for part in context.parts(made) if isinstance(part, Mapping)]
    if any(keyword in part for part in parts for keyword in _BRANCHING):
        raise InvalidConstraint('"unevaluatedItems" is not enforced beside alternatives', at)
    if any("items" in part or "unevaluatedItems" in part for part in parts):
        return made
    size = max((len(part.get("prefixItems", ())) for part in parts), default=0)
    rest: Schema = {ORIGIN: at, "items": node["unevaluatedItems"]}
    if size:
        rest["prefixItems"] = [True] * size
    return with_parts(made, all_of([rest], at))
