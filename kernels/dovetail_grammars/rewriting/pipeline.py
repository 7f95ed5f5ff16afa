"""rewritten(schema): converts a schema for backends, so that they need few keywords.

The passes, in order; each module says what it rewrites and cites the standard:

| pass | what |
|---|---|
| bounds | refuses what is too large or too deep to walk |
| references | one root and flat `$defs`; annotations and unused definitions are dropped |
| spelling | draft 2020-12; refuses values of wrong type |
| effect | keywords that change nothing are dropped |
| constants, objects, arrays, conditions, branches, recursion | node by node, from the root down |

Every rewriting is exact, or narrower than the schema: generated values are always valid. A keyword
that no pass rewrites stays, and the backends report whether they enforce it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.rewriting.arrays import (
    without_contains,
    without_unevaluated_items,
    without_unique,
)
from dovetail_grammars.rewriting.automaton import Undecided
from dovetail_grammars.rewriting.bounds import check_bounds
from dovetail_grammars.rewriting.branches import without_not, without_one_of
from dovetail_grammars.rewriting.conditions import without_conditions, without_dependents
from dovetail_grammars.rewriting.constants import only_constants
from dovetail_grammars.rewriting.context import Context
from dovetail_grammars.rewriting.effect import drawn_in, effective
from dovetail_grammars.rewriting.objects import (
    without_counts,
    without_lookaround,
    without_overlaps,
    without_property_names,
    without_unevaluated_properties,
)
from dovetail_grammars.rewriting.recursion import with_references_alone
from dovetail_grammars.rewriting.references import gathered
from dovetail_grammars.rewriting.spelling import spelled
from dovetail_grammars.rewriting.tree import ORIGIN, Budget, Schema, below, is_any, mapped, origin

MAX_DEPTH = 160
PASSES: tuple[Callable[[Schema, Context], Any], ...] = (
    only_constants,
    without_lookaround,
    without_unevaluated_properties,
    without_unevaluated_items,
    without_property_names,
    without_overlaps,
    without_counts,
    without_unique,
    without_contains,
    without_dependents,
    without_conditions,
    without_not,
    without_one_of,
    with_references_alone,
)
"""The passes that run on each node."""


def rewritten(schema: Schema) -> Schema:
    """Return a schema with the same meaning, or a narrower one, in fewer keywords.

    Raises: InvalidConstraint, with the JSON Pointer of the wrong or unsupported part
    """
    check_bounds(schema)
    budget = Budget()
    try:
        root = effective(spelled(gathered(schema, budget)))
        context = Context(root, budget)
        applied = _applied(root, context, 0)
        while context.pending and applied is not False:
            name, together = context.pending.pop()
            applied.setdefault("$defs", {})[name] = _applied(together, context, 1)
    except RecursionError as error:
        raise InvalidConstraint("the schema is nested too deep, or refers to itself") from error
    if applied is False:
        raise InvalidConstraint("no value meets the schema")
    found: Schema = {} if is_any(applied) else applied
    _forget_origins(found)
    return found


def _applied(schema: Any, context: Context, depth: int) -> Any:
    """Return a schema after all passes, including its subschemas."""
    if not isinstance(schema, Mapping):
        return schema
    if depth > MAX_DEPTH:
        raise InvalidConstraint("the schema is nested too deep", origin(schema))
    node = dict(schema)
    for apply in PASSES:
        try:
            node = apply(node, context)
        except Undecided as error:
            what = f"it takes too much to find out what the schema says: {error}"
            raise InvalidConstraint(what, origin(schema)) from error
        if not isinstance(node, dict):
            return node
    rewritten = mapped(node, lambda inner: _applied(inner, context, depth + 1))
    return _plain(drawn_in(rewritten))


def _plain(node: Schema) -> Any:
    """Return a node without parts that allow everything; False if one allows nothing."""
    if "allOf" in node:
        parts = [part for part in node["allOf"] if not is_any(part)]
        if any(part is False for part in parts):
            return False
        node = {k: v for k, v in node.items() if k != "allOf"} | ({"allOf": parts} if parts else {})
    if "anyOf" in node:
        branches = [branch for branch in node["anyOf"] if branch is not False]
        if not branches:
            return False
        if any(map(is_any, branches)):
            return {k: v for k, v in node.items() if k != "anyOf"}
        node["anyOf"] = branches
    return node


def _forget_origins(root: Schema) -> None:
    """Remove the origin of nodes that have not moved. Mutates: root"""
    pending: list[tuple[str, Any]] = [("", root)]
    while pending:
        at, node = pending.pop()
        if isinstance(node, dict):
            if node.get(ORIGIN) == at:
                del node[ORIGIN]
            pending += [(at + step, inner) for step, inner in below(node)]


def original(schema: Schema, pointer: str) -> str:
    """Convert a JSON Pointer into the rewritten schema to one into the original schema."""
    node: Any = schema
    found, rest = "", ""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            node = None
        rest += f"/{step}"
        if isinstance(node, Mapping) and isinstance(node.get(ORIGIN), str):
            found, rest = node[ORIGIN], ""
    return found + rest
