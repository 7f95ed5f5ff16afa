"""within_doubles(schema): a schema for libraries that use doubles, which are inexact beyond 2^53.

Bounds are narrowed to exact numbers, so what is valid under the new schema is valid under the given
one. Source: RFC 8259 (6), RFC 7493 (2.2).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.json_formats import bounded, is_bound
from dovetail_grammars.schema import nodes

EXACT = 2**53
END = 2**63
"""Bounds beyond this are the limits of an integer type, which generators write as bounds."""
LEAST_WHOLE = 1024 - END
"""The double next to the smallest 64-bit integer."""
REACH = 10**18
"""Bounds of decimals that are the limits of a type are narrowed to this."""
MAX_PLACES = 20
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def within_doubles(schema: Mapping[str, Any], *, is_drawn: bool = False) -> dict[str, Any]:
    """Return a schema with numbers that are exact as doubles.

    Bounds at 64-bit limits are narrowed; with `is_drawn` all bounds beyond 2^53 are. Raises:
    InvalidConstraint, with the pointer of a number that cannot be narrowed
    """
    exact: dict[str, Any] = copy.deepcopy(dict(schema))
    for pointer, node in list(nodes(exact)):
        assert isinstance(node, dict)
        if is_bound(node):
            node |= bounded(node)
            del node["format"]
        for keyword in ("const", "enum", "multipleOf"):
            if any(abs(number) >= EXACT for number in _whole_numbers(node.get(keyword))):
                raise _beyond(f"{pointer}/{keyword}")
        for words, is_low in ((_LOW, True), (_HIGH, False)):
            for word in words:
                if word in node and _places(node[word]) > MAX_PLACES:
                    raise InvalidConstraint(f"the bound {node[word]} has too many places", pointer)
            if any(word in node and abs(node[word]) >= EXACT for word in words):
                bound = _drawn(node, words, is_low=is_low, is_drawn=is_drawn)
                if bound is None:
                    raise _beyond(pointer + "/" + next(word for word in words if word in node))
                for word in words:
                    node.pop(word, None)
                node[words[0]] = bound
    return exact


def _beyond(pointer: str) -> InvalidConstraint:
    what = "a number beyond 2^53 is not enforced beside the other keywords of this schema"
    return InvalidConstraint(what, pointer)


def _drawn(
    node: Mapping[str, Any], words: tuple[str, str], *, is_low: bool, is_drawn: bool
) -> int | None:
    """Return an exact bound, not wider than a node's beyond 2^53; None if there is none."""
    sign = -1 if is_low else 1
    is_whole = _is_whole(node)
    largest = math.inf  # of the numbers, negated for a lower bound
    for word in words:
        if word in node:
            value = sign * node[word]
            if is_whole:
                value = math.ceil(value) - 1 if word == words[1] else math.floor(value)
            largest = min(largest, value)
    if largest >= END - (not is_low):
        return sign * REACH if not is_whole else LEAST_WHOLE if is_low else END - 1
    return sign * EXACT if is_drawn and largest >= EXACT else None


def _is_whole(node: Mapping[str, Any]) -> bool:
    kinds = node.get("type", "number")
    return "number" not in kinds and "integer" in ([kinds] if isinstance(kinds, str) else kinds)


def _whole_numbers(value: Any) -> Iterator[int]:
    """Yield the integers within a value."""
    match value:
        case bool():
            return
        case int():
            yield value
        case list():
            for inner in value:
                yield from _whole_numbers(inner)
        case dict():
            for inner in value.values():
                yield from _whole_numbers(inner)


def _places(value: int | float) -> int:
    """Return how many decimal places a number has."""
    if isinstance(value, int):
        return 0
    digits, _, power = repr(value).partition("e")
    return len(digits.partition(".")[2]) - int(power or 0)
