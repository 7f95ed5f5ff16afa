"""JSON as text that may be cut anywhere: where a value ends, what members an object has so far.

Keeps the writer's own bytes: values are slices, never re-encoded. Linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall

_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRUCTURE = re.compile(r'["\[\]{}]')
_SCALAR_END = re.compile(r"[,\]}\s]")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: its value stands at text[start:end]; `end` None: it is cut."""

    key: str
    start: int
    end: int | None


def skip_blanks(text: str, at: int = 0) -> int:
    """Return the first place at or after `at` that holds no JSON blank."""
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def string_end(text: str, at: int) -> int | None:
    """Return the place behind the string that begins at `at`, or None when it is cut."""
    found = _STRING_END.match(text, at + 1)
    return found.end() if found else None


def value_end(text: str, at: int) -> int | None:
    """Return the place behind the value that begins at `at`, or None when it is cut.

    Brackets and strings are counted, not checked: `loads` does that with the whole.
    """
    if text[at] == '"':
        return string_end(text, at)
    if text[at] not in "[{":
        found = _SCALAR_END.search(text, at)
        return found.start() if found else None
    depth = 0
    while (found := _STRUCTURE.search(text, at)) is not None:
        at = found.start()
        if text[at] == '"':
            end = string_end(text, at)
            if end is None:
                return None
            at = end
            continue
        depth += 1 if text[at] in "[{" else -1
        at += 1
        if depth == 0:
            return at
    return None


def members(text: str, at: int) -> Iterator[Member]:
    """Yield the members of the object that begins at `at`, as far as the text goes.

    Raises: MalformedToolCall where the text is no object.
    """
    at = _expect(text, at, "{")
    while (at := skip_blanks(text, at)) < len(text) and text[at] != "}":
        key_end = string_end(text, at) if text[at] == '"' else -1
        if key_end is None:
            return
        if key_end < 0:
            raise MalformedToolCall("a member has no name")
        key = loads(text[at:key_end])
        at = skip_blanks(text, key_end)
        if at < len(text):
            at = skip_blanks(text, _expect(text, at, ":"))
        if at >= len(text):
            return
        end = value_end(text, at)
        yield Member(key, at, end)
        if end is None:
            return
        at = skip_blanks(text, end)
        if at < len(text) and text[at] == ",":
            at += 1
        elif at < len(text) and text[at] != "}":
            raise MalformedToolCall("members are not divided by a comma")


def _expect(text: str, at: int, character: str) -> int:
    if at < len(text) and text[at] != character:
        raise MalformedToolCall(f"no {character} at character {at + 1}")
    return at + 1


def loads(text: str) -> Any:
    """Return the value of a whole JSON text.

    Raises: UnfinishedToolCall when it ends within a string, MalformedToolCall for other faults.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        is_cut = error.msg.startswith("Unterminated string")
        raise (UnfinishedToolCall if is_cut else MalformedToolCall)(error.msg) from error
    except MalformedToolCall:
        raise
    except (RecursionError, ValueError) as error:
        raise MalformedToolCall("nested too deep, or a number too long") from error


def _refuse_constant(name: str) -> Any:
    raise MalformedToolCall(f"{name} is not JSON")
