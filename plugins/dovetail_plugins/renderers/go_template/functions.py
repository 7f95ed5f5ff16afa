"""The functions of Go templates: Go's own that run no code, Ollama's, and a few of Sprig.

Source: https://pkg.go.dev/text/template#hdr-Functions, Ollama's template package, and
https://masterminds.github.io/sprig for the functions of texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from dovetail_plugins.renderers import _budget as budget
from dovetail_plugins.renderers.go_template.lexing import GoTemplateError
from dovetail_plugins.renderers.go_template.values import (
    NO_VALUE,
    Record,
    is_true,
    json_text,
    kind_of,
    shown,
)

LAZY = frozenset({"and", "or"})
"""Functions that stop at the first argument that decides; the runner evaluates them."""
_VERB = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d{0,4})(?:\.(?P<digits>\d{0,4}))?(?P<verb>.)", re.S
)
_QUOTED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


@dataclass(frozen=True, slots=True)
class GoFunction:
    """A function and the number of its arguments; `most` is None without a limit."""

    run: Callable[..., Any]
    fewest: int
    most: int | None

    @property
    def counts(self) -> str:
        """Return the allowed number of arguments in words."""
        if self.most is None:
            return f"{self.fewest} or more"
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"


def _kind(value: Any) -> str:
    """Return the kind by which values are compared. Raises: GoTemplateError"""
    if isinstance(value, Record | Mapping | list | tuple):
        raise GoTemplateError(f"{kind_of(value)} cannot be compared")
    return "number" if type(value) in (int, float) else kind_of(value)


def _equal(first: Any, *others: Any) -> bool:
    """Return whether a value is one of the others; nil equals nil alone. Raises: GoTemplateError"""
    for other in others:
        if first is not None and other is not None and _kind(first) != _kind(other):
            raise GoTemplateError(f"{kind_of(first)} cannot be compared with {kind_of(other)}")
        if first == other:
            return True
    return False


def _less(first: Any, second: Any) -> bool:
    kind = _kind(first)
    if kind != _kind(second) or kind not in ("number", "a text"):
        raise GoTemplateError(f"{kind_of(first)} has no order with {kind_of(second)}")
    return bool(first < second)


def _sized(value: Any) -> Any:
    """Return what len, index and slice work on; texts are bytes in Go. Raises: GoTemplateError"""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping | list | tuple):
        return value
    raise GoTemplateError(f"{kind_of(value)} has no length")


def _index(value: Any, *places: Any) -> Any:
    for place in places:
        value = _sized(value)
        if isinstance(value, Mapping):
            value = value.get(_text(place))
            continue
        value = value[_position(place, len(value) - 1)]
    return value


def _position(place: Any, last: int) -> int:
    if type(place) is not int or not 0 <= place <= last:
        raise GoTemplateError(f"{shown(place)} is not a place from 0 to {last}")
    return place


def _slice(value: Any, *places: Any) -> Any:
    items = _sized(value)
    if isinstance(items, Mapping):
        raise GoTemplateError("a map cannot be sliced")
    end = _position(places[1], len(items)) if len(places) > 1 else len(items)
    start = _position(places[0], end) if places else 0
    part = items[start:end]
    budget.check_items(len(part))
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _print(*values: Any) -> str:
    """Return values one after another, with blanks between two that are no texts."""
    parts: list[str] = []
    for i, value in enumerate(values):
        is_apart = i and not isinstance(value, str) and not isinstance(values[i - 1], str)
        parts += [" " if is_apart else "", shown(value)]
    return "".join(parts)


def _html(*values: Any) -> str:
    return _print(*(NO_VALUE if one is None else one for one in values)).translate(_QUOTED)


def _println(*values: Any) -> str:
    return " ".join(map(shown, values)) + "\n"


def _printf(layout: Any, *values: Any) -> str:
    left = list(values)

    def field(match: re.Match[str]) -> str:
        if match["verb"] == "%":
            return "%"
        if not left:
            raise GoTemplateError(f"printf has no value for {match[0]}")
        return _formatted(match, left.pop(0))

    text = _VERB.sub(field, _text(layout))
    if left:
        raise GoTemplateError(f"printf has {len(left)} values too many")
    return text


_NUMBERS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys("dxXo", (int,)),
    **dict.fromkeys("feg", (int, float)),
}


def _formatted(match: re.Match[str], value: Any) -> str:
    verb, flags, width = match["verb"], match["flags"], match["width"]
    precision = "" if match["digits"] is None else f".{match['digits'] or 0}"
    if "#" not in flags and type(value) in _NUMBERS.get(verb, ()) and (verb != "g" or precision):
        return str(f"%{flags}{width}{precision}{verb}" % value)
    side = "-" if "-" in flags else ""
    if verb == "q" and isinstance(value, str):
        return f"%{side}{width}s" % json.dumps(value, ensure_ascii=False)
    is_simple = verb in "vs" or (verb == "t" and isinstance(value, bool)) or verb == "g"
    if "#" in flags or not is_simple or (verb == "g" and type(value) not in _NUMBERS["g"]):
        raise GoTemplateError(f"printf cannot write {kind_of(value)} by {match[0]}")
    return f"%{side}{width}{precision if isinstance(value, str) else ''}s" % shown(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise GoTemplateError(f"a text is needed, not {kind_of(value)}")
    return value


def _join(separator: Any, values: Any) -> str:
    if not isinstance(values, list | tuple):
        raise GoTemplateError(f"join needs a list, not {kind_of(values)}")
    parts = [shown(value) for value in values]
    budget.check_size(budget.joined_size(_text(separator), parts))
    return str(separator).join(parts)


_TYPESCRIPT = {"integer": "number", "array": "any[]", "object": "Record<string, any>"}
_SAME = frozenset({"string", "number", "boolean", "null"})


def _typescript(value: Any) -> str:
    """Return the TypeScript type of a tool's property."""
    data = value.data if isinstance(value, Record) else {}
    if data.get("anyOf"):
        return " | ".join(_typescript(Record(value.shape, one)) for one in data["anyOf"])
    kinds = data.get("type") or ()
    names = [kinds] if isinstance(kinds, str) else kinds
    return " | ".join(n if n in _SAME else _TYPESCRIPT.get(str(n), "any") for n in names) or "any"


def _of_text(work: Callable[[str], Any]) -> GoFunction:
    return GoFunction(lambda value: work(_text(value)), 1, 1)


def _of_two_texts(work: Callable[[str, str], Any]) -> GoFunction:
    return GoFunction(lambda part, value: work(_text(part), _text(value)), 2, 2)


FUNCTIONS: dict[str, GoFunction] = {
    "and": GoFunction(lambda *values: values[-1], 1, None),
    "or": GoFunction(lambda *values: values[-1], 1, None),
    "not": GoFunction(lambda value: not is_true(value), 1, 1),
    "eq": GoFunction(_equal, 2, None),
    "ne": GoFunction(lambda a, b: not _equal(a, b), 2, 2),
    "lt": GoFunction(_less, 2, 2),
    "le": GoFunction(lambda a, b: not _less(b, a), 2, 2),
    "gt": GoFunction(lambda a, b: _less(b, a), 2, 2),
    "ge": GoFunction(lambda a, b: not _less(a, b), 2, 2),
    "len": GoFunction(lambda value: len(_sized(value)), 1, 1),
    "index": GoFunction(_index, 1, None),
    "slice": GoFunction(_slice, 1, 3),
    "print": GoFunction(_print, 0, None),
    "println": GoFunction(_println, 0, None),
    "printf": GoFunction(_printf, 1, None),
    "html": GoFunction(_html, 1, None),
    "json": GoFunction(json_text, 1, 1),
    "toJson": GoFunction(json_text, 1, 1),
    "toTypeScriptType": GoFunction(_typescript, 1, 1),
    "currentDate": GoFunction(lambda *_: date.today().isoformat(), 0, None),
    "yesterdayDate": GoFunction(lambda *_: (date.today() - timedelta(1)).isoformat(), 0, None),
    "contains": _of_two_texts(lambda part, text: part in text),
    "hasPrefix": _of_two_texts(lambda part, text: text.startswith(part)),
    "hasSuffix": _of_two_texts(lambda part, text: text.endswith(part)),
    "join": GoFunction(_join, 2, 2),
    "trim": _of_text(str.strip),
    "upper": _of_text(str.upper),
    "lower": _of_text(str.lower),
}
