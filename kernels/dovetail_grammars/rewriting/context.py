"""Queries of the passes on schemas within their document: references, values, disjointness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dovetail_grammars.rewriting.automaton import Effort, Undecided, are_disjoint, matches, searched
from dovetail_grammars.rewriting.tree import KINDS, Budget, Schema, circular, kinds_of, resolved
from dovetail_grammars.rewriting.values import kind_of, meets

MAX_PARTS = 64
MAX_NESTED = 12
"""The maximum depth of comparisons; deeper schemas count as overlapping."""
MAX_VALUES = 256
MAX_RANGE = 16


@dataclass(slots=True)
class Context:
    """A document, its remaining budget, and definitions made from its parts.

    `names`: schemas that must hold together -> the name of their definition; `pending`: those not
    rewritten yet.
    """

    root: Schema
    budget: Budget
    effort: Effort = field(default_factory=Effort)
    names: dict[str, str] = field(default_factory=dict)
    pending: list[tuple[str, Schema]] = field(default_factory=list)
    _circular: frozenset[str] | None = None

    def leads_back(self, schema: Any) -> bool:
        """Return whether a schema is, or must meet, a recursive reference."""
        if not isinstance(schema, Mapping) or not {"$ref", "allOf"} & set(schema):
            return False
        if self._circular is None:
            self._circular = circular(self.root)
        parts = self.parts(schema)
        return any(isinstance(p, Mapping) and p.get("$ref") in self._circular for p in parts)

    def meets(self, value: Any, schema: Any) -> bool:
        """Return whether a value is valid. Raises: Undecided"""
        return meets(value, schema, self.root, self.effort)

    def parts(self, schema: Any) -> list[Any]:
        """Return the nodes that a value must all meet, following references and allOf."""
        nodes: list[Any] = []
        pending, seen = [schema], set()
        while pending and len(nodes) < MAX_PARTS:
            node = pending.pop()
            if not isinstance(node, Mapping):
                nodes.append(node)
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            nodes.append(node)
            pending += node.get("allOf", ())
            if "$ref" in node:
                pending.append(resolved(self.root, node["$ref"]))
        return nodes

    def kinds(self, schema: Any) -> frozenset[str]:
        """Return the types that values of a schema can have."""
        allowed = frozenset(KINDS)
        for part in self.parts(schema):
            if part is False:
                return frozenset()
            if isinstance(part, Mapping):
                allowed &= kinds_of(part)
                if (listed := _listed(part)) is not None:
                    allowed &= {kind_of(value) for value in listed}
        return allowed

    def values(self, schema: Any, depth: int = 0) -> list[Any] | None:
        """Return all values of a schema if there are few, else None."""
        if depth > MAX_NESTED:
            return None
        parts = self.parts(schema)
        if any(part is False for part in parts):
            return []
        nodes = [part for part in parts if isinstance(part, Mapping)]
        for node in nodes:
            listed = self._values_of(node, depth)
            if listed is None or len(listed) > MAX_VALUES:
                continue
            try:
                return [v for v in listed if self.meets(v, schema)]
            except Undecided:
                continue
        return None

    def _values_of(self, node: Mapping[str, Any], depth: int) -> list[Any] | None:
        listed = _listed(node)
        if listed is not None:
            return listed
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                groups = [self.values(branch, depth + 1) for branch in node[keyword]]
                if all(group is not None for group in groups):
                    return [value for group in groups for value in group or ()]
        kinds = kinds_of(node)
        if kinds <= {"boolean", "null"}:
            return [value for value in (True, False, None) if kind_of(value) in kinds]
        low, high = node.get("minimum"), node.get("maximum")
        if node.get("type") == "integer" and isinstance(low, int) and isinstance(high, int):
            return list(range(low, high + 1)) if high - low < MAX_RANGE else None
        return None

    def are_apart(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Return whether certainly no value meets both."""
        if depth > MAX_NESTED:
            return False
        parts = [self.parts(one), self.parts(other)]
        if any(part is False for side in parts for part in side):
            return True
        kinds = self.kinds(one) & self.kinds(other)
        if not kinds or self._values_apart(one, other) or self._values_apart(other, one):
            return True
        self.effort.spend(len(parts[0]) * len(parts[1]))
        if self._branches_apart(parts[0], other, depth) or self._branches_apart(
            parts[1], one, depth
        ):
            return True
        nodes = [[p for p in side if isinstance(p, Mapping)] for side in parts]
        return all(self._kind_apart(kind, nodes[0], nodes[1], depth) for kind in kinds)

    def _values_apart(self, one: Any, other: Any) -> bool:
        listed = [
            found
            for part in self.parts(one)
            if isinstance(part, Mapping) and (found := _listed(part)) is not None
        ]
        try:
            return any(not any(self.meets(v, other) for v in found) for found in listed)
        except Undecided:
            return False

    def _branches_apart(self, parts: list[Any], other: Any, depth: int) -> bool:
        return any(
            all(self.are_apart(branch, other, depth + 1) for branch in part[keyword])
            for part in parts
            if isinstance(part, Mapping)
            for keyword in ("anyOf", "oneOf")
            if keyword in part
        )

    def _kind_apart(self, kind: str, one: list[Any], other: list[Any], depth: int) -> bool:
        both = [*one, *other]
        match kind:
            case "number":
                return _bounds_apart(both)
            case "string":
                return _counts_apart(both, "Length") or self._patterns_apart(one, other)
            case "array":
                return _counts_apart(both, "Items") or self._heads_apart(one, other, depth)
            case "object":
                return _counts_apart(both, "Properties") or self._members_apart(one, other, depth)
        return False

    def _patterns_apart(self, one: list[Any], other: list[Any]) -> bool:
        try:
            return any(
                are_disjoint(searched(a["pattern"]), searched(b["pattern"]), self.effort)
                for a in one
                for b in other
                if "pattern" in a and "pattern" in b
            )
        except Undecided:
            return False

    def _heads_apart(self, one: list[Any], other: list[Any], depth: int) -> bool:
        min_items = max((node.get("minItems", 0) for node in [*one, *other]), default=0)
        return any(
            self.are_apart(item_at(a, at), item_at(b, at), depth + 1)
            for at in range(min(min_items, 4))
            for a in one
            for b in other
        )

    def _members_apart(self, one: list[Any], other: list[Any], depth: int) -> bool:
        needed = {name for node in [*one, *other] for name in node.get("required", ())}
        for name in sorted(needed):
            sides = [[s for n in side for s in self.members_at(n, name)] for side in (one, other)]
            if any(part is False for side in sides for part in side):
                return True
            if any(self.are_apart(a, b, depth + 1) for a in sides[0] for b in sides[1]):
                return True
        return False

    def members_at(
        self, node: Mapping[str, Any], name: str, *, is_strict: bool = False
    ) -> Iterator[Any]:
        """Yield a node's schemas for a member, as far as known. Raises: Undecided for the others,
        if `is_strict`"""
        found = False
        if name in node.get("properties", ()):
            found = True
            yield node["properties"][name]
        for pattern, schema in node.get("patternProperties", {}).items():
            try:
                is_one = matches(searched(pattern), name, self.effort)
            except Undecided:
                if is_strict:
                    raise
                found = True
                continue
            if is_one:
                found = True
                yield schema
        if not found and "additionalProperties" in node:
            yield node["additionalProperties"]


def item_at(node: Mapping[str, Any], at: int) -> Any:
    """Return a node's schema for the item at an index."""
    heads = node.get("prefixItems", ())
    return heads[at] if at < len(heads) else node.get("items", True)


def _listed(node: Mapping[str, Any]) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    found: list[Any] | None = node.get("enum")
    return found


def _bounds_apart(nodes: list[Any]) -> bool:
    low = [(Fraction(str(n[k])), k[0] == "e") for n in nodes for k in _LOW if k in n]
    high = [(Fraction(str(n[k])), k[0] == "e") for n in nodes for k in _HIGH if k in n]
    return any(a > b or (a == b and (p or q)) for a, p in low for b, q in high)


_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def _counts_apart(nodes: list[Any], word: str) -> bool:
    minimum = max((node.get(f"min{word}", 0) for node in nodes), default=0)
    return any(node[f"max{word}"] < minimum for node in nodes if f"max{word}" in node)
