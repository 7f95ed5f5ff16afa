"""Shapes: the parts of a schema that apply at a place of a JSON text, for `uniqueItems`.

A shape is the set of all subschemas that may apply to the value, over all alternatives. A list must
have unique items if any of them says so, which may be too strict but never too lax. Source:
https://json-schema.org/draft/2020-12/json-schema-validation (6.4.3, uniqueItems).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.keywords import words
from dovetail_grammars.rewriting.tree import is_any
from dovetail_grammars.schema import nodes, resolved

MAX_SHAPES = 2000
_TOGETHER = ("allOf", "anyOf", "oneOf")
_ROOMY = words("type $ref $defs definitions allOf anyOf oneOf minLength $comment")


def has_unique(schema: Any) -> bool:
    """Return whether a schema has `uniqueItems` anywhere."""
    return any(node.get("uniqueItems") for _, node in nodes(schema))


def _is_positional(node: Mapping[str, Any]) -> bool:
    """Return whether items have schemas by position. An alternative made for `contains` does not
    count, since there are alternatives with the item at each earlier position."""
    heads = node.get("prefixItems", ())
    return bool(heads) and not all(map(is_any, heads[:-1]))


class Shape:
    """The subschemas that may apply to one value."""

    def __init__(self, found: Iterable[Any], document: _Document) -> None:
        self._document = document
        self._nodes = list(_closed(found, document.root))
        self._members: dict[str, Shape] = {}
        self.is_unique = any(node.get("uniqueItems") for node in self._nodes)
        self.key = frozenset(map(id, self._nodes))

    @cached_property
    def items(self) -> Shape:
        """Return the shape of a list's items."""
        found = [node["items"] for node in self._nodes if "items" in node]
        found += [item for node in self._nodes for item in node.get("prefixItems", ())]
        return self._document.shape(found)

    def member(self, name: str) -> Shape:
        """Return the shape of an object's member."""
        if name not in self._members:
            self._members[name] = self._document.shape(self._of_member(name))
        return self._members[name]

    def _of_member(self, name: str) -> Iterator[Any]:
        for node in self._nodes:
            yield from node.get("patternProperties", {}).values()
            if name in node.get("properties", ()):
                yield node["properties"][name]
            elif "additionalProperties" in node:
                yield node["additionalProperties"]

    @cached_property
    def is_roomy(self) -> bool:
        """Return whether any prefix of a value has endless continuations: strings without a pattern
        or a maximum length."""
        kinds = {node["type"] for node in self._nodes if isinstance(node.get("type"), str)}
        return kinds == {"string"} and all(set(node) <= _ROOMY for node in self._nodes)

    @cached_property
    def is_endless(self) -> bool:
        """Return whether there are infinitely many values: strings or numbers are allowed, and only
        a single `type` constrains them."""
        kinds = [node["type"] for node in self._nodes if "type" in node]
        lists = [{kind} if isinstance(kind, str) else set(kind) for kind in kinds]
        is_long = all(found & {"string", "integer", "number"} for found in lists)
        return is_long and len(kinds) <= 1 and all(set(node) <= _ROOMY for node in self._nodes)

    def inner(self) -> Iterator[Shape]:
        """Yield the shapes of all children."""
        yield self.items
        names = {name for node in self._nodes for name in node.get("properties", ())}
        for name in sorted(names):
            yield self.member(name)
        yield self._document.shape(
            inner
            for node in self._nodes
            for inner in (
                *node.get("patternProperties", {}).values(),
                node.get("additionalProperties", True),
            )
        )

    def check(self) -> None:
        """Raise InvalidConstraint for a list whose alternatives may allow only equal items."""
        if self.is_unique and any(map(_is_positional, self._nodes)):
            raise InvalidConstraint('"uniqueItems" is not enforced beside items by position')


class _Document:
    """A schema, and a cache of the shapes within it."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._shapes: dict[frozenset[int], Shape] = {}

    def shape(self, found: Iterable[Any]) -> Shape:
        """Return the shape of a value with these possible subschemas."""
        shape = Shape(found, self)
        return self._shapes.setdefault(shape.key, shape)


def shape_of(schema: Any) -> Shape:
    """Return the shape of a whole text. Raises: InvalidConstraint if a list of unique items might
    be impossible to complete"""
    root = _Document(schema).shape([schema])
    pending, seen = [root] if has_unique(schema) else [], {root.key}
    while pending:
        shape = pending.pop()
        shape.check()
        for inner in shape.inner():
            if inner.key not in seen:
                seen.add(inner.key)
                pending.append(inner)
        if len(seen) > MAX_SHAPES:
            raise InvalidConstraint("the schema has too many parts beside uniqueItems")
    return root


def _closed(found: Iterable[Any], root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield subschemas, and those that also apply through references and combinators."""
    pending, seen = list(found), set()
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        pending += [part for keyword in _TOGETHER for part in node.get(keyword, ())]
        if "$ref" in node:
            pending.append(resolved(root, node["$ref"]))
