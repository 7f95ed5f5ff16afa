"""Pass 2: the reachable part of a document, as one root and flat `$defs`.

Every reference becomes "#" or "#/$defs/NAME", whether it was a JSON Pointer to anywhere in the
document, an anchor, or an address relative to an `$id`. Unused definitions and all keywords that do
not validate are dropped. References to other documents are refused, except to the metaschemas of
drafts: nothing is fetched. Source: https://json-schema.org/draft/2020-12/json-schema-core (8.2,
9.2); in drafts 3 to 7 keywords next to `$ref` are ignored (draft 7, 8.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.rewriting.metaschemas import metaschema
from dovetail_grammars.rewriting.tree import (
    OF_LISTS,
    OF_ONE,
    OF_SCHEMAS,
    ORIGIN,
    VALIDATING,
    Budget,
    Schema,
    below,
    escaped,
)

_OF_DRAFT_3 = {"divisibleBy": "multipleOf", "extends": "allOf", "disallow": "not"}
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")
_NOT_COPIED = ("$defs", "definitions")


def draft_of(schema: Any) -> int | None:
    """Return the number of the draft in `$schema` (3, 4, 6, 7, 8 for 2019-09), None for the latest
    or an unknown one."""
    named = schema.get("$schema") if isinstance(schema, Mapping) else None
    found = re.search(r"draft-0([3467])/", f"{named}/".replace("#", "/"))
    if found:
        return int(found[1])
    return 8 if isinstance(named, str) and "draft/2019-09" in named else None


def gathered(document: Schema, budget: Budget) -> Schema:
    """Return the root with all schemas that it references. Raises: InvalidConstraint"""
    return _Gatherer(document, budget).run()


@dataclass(slots=True)
class _Index:
    """The schemas of a document by address, by anchor, and their base addresses."""

    resources: dict[str, Any] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)
    bases: dict[int, str] = field(default_factory=dict)
    pointers: dict[int, str] = field(default_factory=dict)
    num_dynamic: dict[str, int] = field(default_factory=dict)


def _indexed(document: Schema, draft: int | None) -> _Index:
    index = _Index()
    pending: list[tuple[Any, str, str]] = [(document, "", "")]
    while pending:
        node, pointer, base = pending.pop()
        if not isinstance(node, Mapping):
            continue
        own = node.get("id" if draft in (3, 4) else "$id")
        if isinstance(own, str) and own.startswith("#"):
            index.anchors[base, own[1:]] = node
        elif isinstance(own, str):
            base = _joined(base, own).partition("#")[0]
            index.resources.setdefault(base, node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                index.anchors[base, node[keyword]] = node
        if isinstance(node.get("$dynamicAnchor"), str):
            name = node["$dynamicAnchor"]
            index.num_dynamic[name] = index.num_dynamic.get(name, 0) + 1
        index.bases[id(node)] = base
        index.pointers[id(node)] = pointer
        pending += [(inner, pointer + at, base) for at, inner in below(node)]
    return index


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


class _Gatherer:
    def __init__(self, document: Schema, budget: Budget) -> None:
        self._document = document
        self._budget = budget
        self._draft = draft_of(document)
        self._index = _indexed(document, self._draft)
        self._names: dict[int, str] = {}
        self._targets: list[tuple[str, Any, str, str]] = []

    def run(self) -> Schema:
        root: Schema = self._copied(self._document, "", self._index.bases[id(self._document)])
        defs: Schema = {}
        while self._targets:
            name, target, at, base = self._targets.pop()
            defs[name] = self._copied(target, at, base)
        return {**root, "$defs": defs} if defs else root

    def _copied(self, node: Any, at: str, base: str) -> Any:
        """Return a schema with its references simplified. `at`: its pointer in the document."""
        if not isinstance(node, Mapping):
            return node
        self._budget.spend(1, at)
        base = self._index.bases.get(id(node), base)
        copy: Schema = {ORIGIN: at}
        for keyword, value in node.items():
            here = f"{at}/{escaped(keyword)}"
            if keyword in _REFERRING:
                self._refer(copy, keyword, value, here, base)
            elif self._is_kept(keyword, node):
                copy[self._spelled(keyword)] = self._value(keyword, value, here, base)
        return copy

    def _is_kept(self, keyword: str, node: Mapping[str, Any]) -> bool:
        draft = self._draft or 9
        if draft < 8 and ("$ref" in node or keyword in ("minContains", "maxContains")):
            return False  # keywords next to a reference are ignored
        if draft < 9 and keyword == "prefixItems":
            return False
        if keyword in _OF_DRAFT_3:
            return self._draft == 3
        return keyword in VALIDATING and keyword not in _NOT_COPIED

    def _spelled(self, keyword: str) -> str:
        return _OF_DRAFT_3.get(keyword, keyword)

    def _value(self, keyword: str, value: Any, at: str, base: str) -> Any:
        if keyword == "extends":
            parts = value if isinstance(value, list) else [value]
            return [self._copied(part, at, base) for part in parts]
        if keyword == "disallow":
            return {ORIGIN: at, "type": value}
        if keyword in OF_SCHEMAS and isinstance(value, Mapping):
            return {n: self._copied(v, f"{at}/{escaped(n)}", base) for n, v in value.items()}
        if (keyword in OF_LISTS or keyword == "items") and isinstance(value, list):
            return [self._copied(part, f"{at}/{n}", base) for n, part in enumerate(value)]
        return self._copied(value, at, base) if keyword in OF_ONE else value

    def _refer(self, copied_node: Schema, keyword: str, value: Any, at: str, base: str) -> None:
        """Add a reference to a copied node. Mutates: copied_node"""
        target = self._target(keyword, value, base)
        if not isinstance(target, bool | Mapping):
            raise InvalidConstraint("the reference leads to no schema within this one", at)
        if isinstance(target, bool):
            part: Any = target
        elif target is self._document:
            part = {ORIGIN: at, "$ref": "#"}
        else:
            part = {ORIGIN: at, "$ref": f"#/$defs/{escaped(self._name(target, value))}"}
        if isinstance(part, Mapping) and "$ref" not in copied_node:
            copied_node["$ref"] = part["$ref"]
        else:
            copied_node.setdefault("allOf", []).append(part)

    def _name(self, target: Any, reference: str) -> str:
        """Return the name of a definition, created on its first reference."""
        found = self._names.get(id(target))
        if found is not None:
            return found
        stem = re.sub(r"[^A-Za-z0-9_.~/-]", "_", reference.rpartition("/")[2].lstrip("#")) or "part"
        stem, taken, number = stem[:60], set(self._names.values()), 1
        name = stem
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        self._names[id(target)] = name
        at = self._index.pointers.get(id(target))
        at = unquote(reference[1:]) if at is None and reference.startswith("#/") else at
        base = self._index.bases.get(id(target), self._index.bases[id(self._document)])
        self._targets.append((name, target, at or "", base))
        return name

    def _target(self, keyword: str, reference: Any, base: str) -> Any:
        if not isinstance(reference, str):
            return None
        named = unquote(reference.partition("#")[2])
        if keyword == "$dynamicRef" and self._index.num_dynamic.get(named, 0) > 1:
            return None  # its target depends on the path of references to it
        if keyword == "$recursiveRef" and len(self._index.resources) > 1:
            return None
        address, _, fragment = _joined(base, reference).partition("#")
        fragment = unquote(fragment)
        own = self._index.bases[id(self._document)]
        resource = self._index.resources.get(address)
        if resource is None and address in ("", own):
            resource = self._document
        if resource is None:
            resource = self._of_schemas(address)
        target = self._within(resource, address, fragment)
        if target is None and reference.startswith("#"):
            target = self._within(self._document, own, fragment)
        return target

    def _of_schemas(self, address: str) -> Any:
        """Return the metaschema at an address, None for other addresses. Mutates: self"""
        found = metaschema(address)
        if found is not None:
            self._index.resources[address] = found
            pending: list[Any] = [found]
            for node in pending:
                self._index.bases[id(node)] = address
                pending += [inner for _, inner in below(node) if isinstance(inner, Mapping)]
        return found

    def _within(self, resource: Any, address: str, fragment: str) -> Any:
        if resource is None or not fragment:
            return resource
        if not fragment.startswith("/"):
            return self._index.anchors.get((address, fragment))
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(resource, Mapping):
                resource = resource.get(name)
            elif isinstance(resource, list) and name.isdecimal() and int(name) < len(resource):
                resource = resource[int(name)]
            else:
                return None
        return resource
