"""Constraints of values written without quotes: strings up to a closing tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.constraint import (
    Constraint,
    FreeText,
    Literal,
    Regex,
    choice_of,
    concat,
)

_ABOUT = frozenset(
    ("type", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "nullable", "$comment", "$defs", "definitions")
)  # fmt: skip
_DAY = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-4]):[03]0)"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "email": r"[a-z0-9][a-z0-9_+-]{0,30}(?:\.[a-z0-9_+-]{1,30}){0,3}"
    r"@[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?){1,3}",
}
"""Patterns whose every match is valid in the format (not all valid texts match: days end at 28)."""


def text_constraint(
    schema: Mapping[str, Any], closing: str, *, line: str = ""
) -> Constraint | None:
    """Return the constraint of a bare string and what follows it: an optional line end, and this
    tag.

    None if it cannot be expressed. A bounded string has no "<" and, before a line end, no line end:
    its end must be visible immediately.
    """
    end = line + closing
    value = _value_constraint(schema, closing, line)
    return concat(value, end) if value else None


def _value_constraint(schema: Mapping[str, Any], closing: str, line: str) -> Constraint | None:
    said = set(schema) - _ABOUT
    values = values_of(schema)
    if values is not None and said <= {"enum", "const"}:
        return _one_of([value for value in values if isinstance(value, str)], closing)
    if not said:
        return FreeText((line + closing, closing) if line else (closing,))
    if said <= {"minLength", "maxLength"}:
        minimum, maximum = schema.get("minLength", 0), schema.get("maxLength", "")
        return Regex(f"[^{closing[0]}{_escaped(line)}]{{{minimum},{maximum}}}")
    if said == {"format"} and schema["format"] in FORMATS:
        return Regex(FORMATS[schema["format"]])
    if said == {"pattern"} and is_closed_pattern(schema["pattern"]):
        return Regex(schema["pattern"][1:-1])
    return None


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, or None."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def _escaped(line: str) -> str:
    return "\\n" if line else ""


def _one_of(values: list[str], closing: str) -> Constraint | None:
    usable = [Literal(value) for value in values if closing not in value]
    if not usable:
        return None
    return choice_of(usable)


def is_closed_pattern(pattern: Any) -> bool:
    """Return whether a pattern restricts the whole text to certain characters, without "<".

    Conservative: alternatives outside of groups, escapes but a few, and "." and "[^" are not taken.
    """
    if not isinstance(pattern, str) or not (pattern.startswith("^") and pattern.endswith("$")):
        return False
    inside = pattern[1:-1]
    plain = re.sub(r"\\[dw.\-+*?/()\[\]{}]", "x", inside)
    if any(character in plain for character in "\\.<^$\n") or plain.count("(") != plain.count(")"):
        return False
    listed = "".join(re.findall(r"\[[^\]]*\]", plain)).replace("0-9", "")
    if re.search(r"[!-;]-[=-Z^-~]", listed):
        return False  # A range from below "<" to above it.
    return "|" not in re.sub(r"\([^()]*\)", "", plain)
