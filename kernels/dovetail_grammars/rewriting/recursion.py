"""Last pass: a recursive reference, combined with its adjacent keywords, becomes a definition.

Libraries merge both when they meet, which never ends: the merged schema refers to itself next to
the same keywords again. So each set of schemas that must hold together becomes a definition once,
and refers to itself by name. There are finitely many, since each is a set of parts of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dovetail_grammars.rewriting.context import MAX_PARTS, Context
from dovetail_grammars.rewriting.tree import ORIGIN, Schema, all_of, escaped, mapped, origin

_OF_OTHERS = (ORIGIN, "$defs")
_FOLLOWED = ("$ref", "allOf", "$defs")
_GROUP = {
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), "properties"),
    **dict.fromkeys(("prefixItems", "items"), "items"),
    **dict.fromkeys(("contains", "minContains", "maxContains"), "contains"),
    **dict.fromkeys(("if", "then", "else"), "if"),
    **dict.fromkeys(("format", "pattern"), "pattern"),
}
_ASKING = ("unevaluatedProperties", "unevaluatedItems")


def with_references_alone(node: Schema, context: Context) -> Any:
    """Return a node with a recursive reference as its only keyword. Mutates: context"""
    said = [keyword for keyword in node if keyword not in _OF_OTHERS]
    if said == ["$ref"] or not context.leads_back(node):
        return node
    found = context.parts(node)
    if any(part is False for part in found):
        return False
    if len(found) >= MAX_PARTS:
        return node
    parts = {_key(part): part for part in map(_alone, found) if set(part) - {ORIGIN}}
    context.budget.spend(len(parts), origin(node))
    key = json.dumps(sorted(parts))
    if key not in context.names:
        context.names[key] = _new_name(context)
        together = _joined(_merged(list(parts.values()), context, origin(node)))
        context.pending.append((context.names[key], {ORIGIN: origin(node), "allOf": together}))
    rest = {keyword: node[keyword] for keyword in _OF_OTHERS if keyword in node}
    return rest | {"$ref": f"#/$defs/{escaped(context.names[key])}"}


def _alone(part: Any) -> Schema:
    """Return a part without $ref and allOf; unchanged if it has an unevaluated keyword."""
    if not isinstance(part, Mapping):
        return {}
    followed = () if any(keyword in part for keyword in _ASKING) else _FOLLOWED
    return {keyword: value for keyword, value in part.items() if keyword not in followed}


def _key(part: Schema) -> str:
    """Return a schema as text, without its origins."""

    def bare(schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        return mapped({k: v for k, v in schema.items() if k not in _OF_OTHERS}, bare)

    return json.dumps(bare(part), sort_keys=True)


def _new_name(context: Context) -> str:
    taken = {*context.root.get("$defs", ()), *context.names.values()}
    return next(name for n in range(len(taken) + 1) if (name := f"together_{n}") not in taken)


def _merged(parts: list[Schema], context: Context, at: str) -> list[Schema]:
    """Return parts with recursive schemas of a member or of the items combined into one part."""
    merged = [dict(part) for part in parts]
    for name in sorted({name for part in merged for name in part.get("properties", ())}):
        owners = [part for part in merged if name in part.get("properties", ())]
        found = _said_once([part["properties"][name] for part in owners], context, at)
        for part, schema in zip(owners, found, strict=True):
            part["properties"] = {**part["properties"], name: schema}
    lists = [part for part in merged if "items" in part]
    if not any("prefixItems" in part for part in lists):
        found = _said_once([part["items"] for part in lists], context, at)
        for part, schema in zip(lists, found, strict=True):
            part["items"] = schema
    return merged


def _said_once(schemas: list[Any], context: Context, at: str) -> list[Any]:
    """Return schemas for one place; if they are recursive, the first one combines all."""
    if len(schemas) < 2 or not any(map(context.leads_back, schemas)):
        return schemas
    return [all_of(schemas, at), *[True] * (len(schemas) - 1)]


def _joined(parts: list[Schema]) -> list[Schema]:
    """Return fewer parts, merging those with keywords that do not affect each other."""
    joined: list[Schema] = []
    for part in parts:
        subjects = _subjects(part)
        for other in joined:
            if not subjects & _subjects(other) and not set(_ASKING) & {*part, *other}:
                other |= part | {ORIGIN: other[ORIGIN]}
                break
        else:
            joined.append(dict(part))
    return joined


def _subjects(part: Schema) -> set[str]:
    """Return the keywords of a part, with related keywords under one name."""
    return {_GROUP.get(keyword, keyword) for keyword in part if keyword != ORIGIN}
