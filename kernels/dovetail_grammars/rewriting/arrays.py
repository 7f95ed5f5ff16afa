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
    remaining = {
        k: v for k, v in node.items() if k not in ("contains", "minContains", "maxContains")
    }
    minimum, maximum = node.get("minContains", 1), node.get("maxContains")
    if minimum == 0 and maximum is None:
        return remaining
    if maximum is not None and maximum < minimum:
        return with_parts(remaining, _no_list(at))
    if maximum not in (None, 0, 1) or minimum > 1 or (maximum == 1 and minimum == 0):
        what = "only one item, or one at least, can be asked for by contains"
        raise InvalidConstraint(what, at)
    wanted = node["contains"]
    try:
        other = True if maximum is None else opposite(wanted, context, at)
    except Undecided as error:
        raise InvalidConstraint(f'"maxContains" is not enforced here: {error}', at) from error
    if maximum == 0:
        return with_parts(remaining, {ORIGIN: at, "items": other})
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
    return with_parts(remaining, any_of([*branches, *_no_lists(node, at)], at))


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
    remaining = {k: v for k, v in node.items() if k != "uniqueItems"}
    heads, maximum = node.get("prefixItems", []), node.get("maxItems", math.inf)
    items = node.get("items", True)
    if maximum <= 1 or (not heads and items is False):
        return remaining
    if heads and (items is False or maximum <= len(heads)):
        pairs = itertools.combinations(heads, 2)
        if all(context.are_apart(one, other) for one, other in pairs):
            return remaining
    at = f"{origin(node)}/uniqueItems"
    parts = [part for part in context.parts(remaining) if isinstance(part, Mapping)]
    if any("prefixItems" in part or "maxContains" in part for part in parts):
        raise InvalidConstraint('"uniqueItems" is not enforced beside items by position', at)
    items = all_of([part["items"] for part in parts if "items" in part], at)
    values = context.values(items)
    if values is not None:
        return _listed(node, _different(values), context)
    minimum = max((part.get("minItems", 0) for part in parts), default=0)
    if minimum > 1 and not has_values(items, minimum, context):
        what = f"it is not known whether there are {minimum} different items"
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
    minimum, maximum = node.get("minItems", 0), min(node.get("maxItems", math.inf), len(values))
    sizes = range(minimum, int(maximum) + 1)
    bounded = {**node, "items": {ORIGIN: at, "enum": values}, "maxItems": int(maximum)}
    if kinds_of(node) != {"array"} or sum(math.perm(len(values), k) for k in sizes) > MAX_LISTS:
        return bounded
    lists = [list(one) for size in sizes for one in itertools.permutations(values, size)]
    try:
        valid = [one for one in lists if context.meets(one, node)]
    except Undecided:
        return bounded
    context.budget.spend(len(valid), at)
    return {ORIGIN: origin(node), "enum": valid} if valid else bounded


def without_unevaluated_items(node: Schema, context: Context) -> Any:
    """Return a node with `items` for unevaluated items. Raises: InvalidConstraint"""
    if "unevaluatedItems" not in node:
        return node
    at = f"{origin(node)}/unevaluatedItems"
    remaining = {k: v for k, v in node.items() if k != "unevaluatedItems"}
    if is_any(node["unevaluatedItems"]):
        return remaining
    parts = [part for part in context.parts(remaining) if isinstance(part, Mapping)]
    if any(keyword in part for part in parts for keyword in _BRANCHING):
        raise InvalidConstraint('"unevaluatedItems" is not enforced beside alternatives', at)
    if any("items" in part or "unevaluatedItems" in part for part in parts):
        return remaining
    size = max((len(part.get("prefixItems", ())) for part in parts), default=0)
    rest: Schema = {ORIGIN: at, "items": node["unevaluatedItems"]}
    if size:
        rest["prefixItems"] = [True] * size
    return with_parts(remaining, all_of([rest], at))
