"""Finds the keywords of a JSON schema that a backend would not enforce.

Source: https://json-schema.org/draft/2020-12 (keywords), RFC 6901 (pointers).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from dovetail_grammars.errors import InvalidConstraint, UnsupportedPart
from dovetail_grammars.json_formats import FORMATS, LONG, bounded, is_bound
from dovetail_grammars.rewriting.spelling import RIGHT
from dovetail_grammars.rewriting.tree import VALIDATING, escaped, subschemas

MAX_DEPTH = 64
ENFORCED_BESIDE = frozenset({"uniqueItems"})
"""Keywords that are enforced outside the backends, during generation (unique_items)."""
_READ = VALIDATING | {"$defs", "definitions"}
"""Keywords that validate or define; all others are annotations."""
_PART = re.compile(r"/allOf/[0-9]+$")


class Enforces(Protocol):
    """The abilities of a backend: it enforces `keywords`, except in nodes that it `refuses`."""

    keywords: frozenset[str]

    def refuses(self, node: Mapping[str, Any], keyword: str) -> str | None:
        """Return why a keyword of `keywords` is not enforced in this node, or None."""


def unsupported_keywords(backend: Enforces, schema: Any) -> list[UnsupportedPart]:
    """Return the keywords of a schema that the backend does not enforce, with JSON Pointers."""
    found = []
    for pointer, node in nodes(schema):
        if pointer.count("/") > 2 * MAX_DEPTH:
            return [
                UnsupportedPart(
                    pointer, f"schemas nested more than {MAX_DEPTH} deep are not supported"
                )
            ]
        for keyword in node:
            said = _why_not(backend, node, keyword) or _misplaced(schema, node, keyword)
            if said is not None:
                found.append(UnsupportedPart(f"{pointer}/{escaped(keyword)}", said))
    return found


def _why_not(backend: Enforces, node: Mapping[str, Any], keyword: str) -> str | None:
    if keyword not in _READ:
        return None
    fits, value_type = RIGHT.get(keyword, (None, ""))
    if fits is not None and not fits(node[keyword]):
        return f'the keyword "{keyword}" takes {value_type}'
    if keyword in ENFORCED_BESIDE:
        return None
    if keyword not in backend.keywords:
        return f'the keyword "{keyword}" is not enforced'
    if keyword == "format" and node[keyword] not in FORMATS and not is_bound(node):
        return f'the format "{node[keyword][:64]}" is not enforced'
    if keyword == "format" and "pattern" in node:
        return "a format beside a pattern is not enforced"
    return backend.refuses(node, keyword)


def _misplaced(schema: Any, node: Mapping[str, Any], keyword: str) -> str | None:
    if keyword == "$ref" and not isinstance(resolved(schema, node[keyword]), bool | Mapping):
        return "a reference must be # or #/ with a JSON Pointer to a schema within this one"
    return None


def nodes(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every schema within a schema, following references, with JSON Pointers.

    Outer schemas come first, each only once.
    """
    pending = [(pointer, schema)]
    seen = set()
    while pending:
        at, node = pending.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue  # true and false are schemas without keywords
        seen.add(id(node))
        yield at, node
        for keyword, value in reversed(list(node.items())):
            if keyword == "$ref":
                pending.append((f"{at}/$ref", resolved(schema, value)))
            below = [(at + step, inner) for step, inner in subschemas(keyword, value)]
            pending += reversed(below)


def resolved(schema: Any, reference: Any) -> Any:
    """Return the target of a reference within a schema, None if there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = schema
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with only the listed properties in its objects, unless it allows others."""
    copied: dict[str, Any] = copy.deepcopy(dict(schema))
    for _, node in nodes(copied):
        if isinstance(node.get("properties"), dict) and isinstance(node, dict):
            node.setdefault("additionalProperties", False)
    return copied


def plain_schema(
    schema: Mapping[str, Any], as_pattern: Callable[[str], str], *, has_long: bool = False
) -> dict[str, Any]:
    """Return a schema without annotations, with formats as patterns, and with patterns as plain
    expressions for a whole text, written by `as_pattern`. `has_long`: a format without allOf
    becomes several patterns, for texts of full length.

    Raises: InvalidConstraint, with the pointer of a pattern that is not supported
    """
    copied: dict[str, Any] = copy.deepcopy(dict(schema))
    for pointer, node in list(nodes(copied)):
        assert isinstance(node, dict)
        for keyword in [k for k in node if k not in _READ]:
            del node[keyword]
        if is_bound(node):
            node |= bounded(node)
            del node["format"]
        elif "format" in node:
            is_alone = "allOf" not in node and not _PART.search(pointer)
            node |= _of_format(node.pop("format"), as_pattern, is_long=has_long and is_alone)
        elif "pattern" in node:
            node["pattern"] = _pointed(as_pattern, node["pattern"], f"{pointer}/pattern")
        if "patternProperties" in node:
            at = f"{pointer}/patternProperties"
            given = node["patternProperties"].items()
            named = {_pointed(as_pattern, k, f"{at}/{escaped(k)}"): v for k, v in given}
            if len(named) < len(given):
                raise InvalidConstraint("two of the patterns are the same", at)
            node["patternProperties"] = named
    return copied


def _of_format(name: str, as_pattern: Callable[[str], str], *, is_long: bool) -> dict[str, Any]:
    texts = LONG.get(name, (FORMATS[name],)) if is_long else (FORMATS[name],)
    pattern, *others = (as_pattern(f"^(?:{text})$") for text in texts)
    more = {"allOf": [{"pattern": one} for one in others]} if others else {}
    return {"pattern": pattern, **more}


def _pointed(as_pattern: Callable[[str], str], pattern: str, pointer: str) -> str:
    try:
        return as_pattern(pattern)
    except InvalidConstraint as error:
        raise InvalidConstraint(str(error), pointer) from error
