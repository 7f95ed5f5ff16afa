"""JSON text that may be cut off anywhere: find where a value ends and which members an object has.

Values are slices of the original text, never re-encoded. Linear in the length of the text.
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
# Python 3.11.2 mishandles possessive repeats of groups, (?:ab)*+, when the last iteration fails
# half-way. So repeats of groups are plain here, written so that they never need to backtrack.
_STRING_BODY = re.compile(r'[^"\\]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*+)*')
_PART_OF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_PART_OF_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][-+]?[0-9]*)?)?")
_WORDS = ("true", "false", "null")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object. Its value is text[start:end]; `end` None: the value is cut off or not
    JSON."""

    key: str
    start: int
    end: int | None


def skip_blanks(text: str, at: int = 0) -> int:
    """Return the first position at or after `at` that is not JSON whitespace."""
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def string_end(text: str, at: int) -> int | None:
    """Return the position after the string that begins at `at`, or None if it is cut off."""
    found = _STRING_END.match(text, at + 1)
    return found.end() if found else None


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a text for a JSON value. `end` is the position after a complete value,
    `fault` that of the first invalid character. If both are None, the text is cut off."""

    end: int | None = None
    fault: int | None = None

    @property
    def over(self) -> int | None:
        """Return where the value ends, valid or not, or None if it is cut off."""
        return self.end if self.fault is None else self.fault


class _Fault(Exception):
    """The position of an invalid character."""


def check(text: str, at: int = 0) -> Checked:
    """Check whether a JSON value begins at `at`, and return how far it extends.

    Control characters in strings are accepted, because models write them.
    """
    open_ones: list[str] = []
    try:
        while True:
            at = skip_blanks(text, at)
            if text[at] in "[{":
                open_ones.append("]" if text[at] == "[" else "}")
                behind = skip_blanks(text, at + 1)
                if text[behind : behind + 1] != open_ones[-1]:
                    at = _item(text, behind, open_ones)
                    continue
                at = behind
            else:
                at = _scalar_end(text, at)
            at = _close(text, at, open_ones)
            if not open_ones:
                return Checked(end=at)
            at = _item(text, at + 1, open_ones)
    except _Fault as fault:
        return Checked(fault=fault.args[0])
    except IndexError:
        return Checked()


def _close(text: str, at: int, open_ones: list[str]) -> int:
    """Return the position of the comma after a value, or the position after the outermost container
    if that is closed. Mutates: open_ones

    `at` is after a scalar or on a closing bracket. Raises: _Fault; IndexError when the text ends.
    """
    while open_ones:
        at = skip_blanks(text, at)
        if text[at] == ",":
            return at
        if text[at] != open_ones[-1]:
            raise _Fault(at)
        open_ones.pop()
        at += 1
    return at


def _item(text: str, at: int, open_ones: list[str]) -> int:
    """Return where an item's value begins; in an object, that is after its key and colon."""
    if open_ones[-1] == "]":
        return at
    at = skip_blanks(text, at)
    if text[at] != '"':
        raise _Fault(at)
    at = skip_blanks(text, _checked_string_end(text, at))
    if text[at] != ":":
        raise _Fault(at)
    return at + 1


def _scalar_end(text: str, at: int) -> int:
    if text[at] == '"':
        return _checked_string_end(text, at)
    for word in _WORDS:
        if text[at] == word[0]:
            return at + _common(text, at, word)
    part = _PART_OF_NUMBER.match(text, at)
    assert part is not None
    if part.end() == len(text):
        raise IndexError
    if _NUMBER.fullmatch(text, at, part.end()) is None:
        raise _Fault(part.end())
    return part.end()


def _common(text: str, at: int, word: str) -> int:
    """Return the length of a word that must begin at this position. Raises: as `_scalar_end`"""
    for number, letter in enumerate(word):
        if text[at + number] != letter:
            raise _Fault(at + number)
    return len(word)


def _checked_string_end(text: str, at: int) -> int:
    body = _STRING_BODY.match(text, at + 1)
    assert body is not None
    at = body.end()
    if text[at] == '"':
        return at + 1
    part = _PART_OF_ESCAPE.match(text, at)
    assert part is not None
    if part.end() == len(text):
        raise IndexError
    raise _Fault(part.end())


def members(text: str, at: int) -> Iterator[Member]:
    """Yield the members of the object that begins at `at`, as far as the text goes.

    Raises: MalformedToolCall if the text is not an object.
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
        end = check(text, at).end
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


def quoted(text: str) -> str:
    """Return a text as a JSON string. A longer text only extends it, before the closing quote."""
    return json.dumps(text, ensure_ascii=False)


def loads(text: str) -> Any:
    """Return the value of a complete JSON text; control characters in strings are accepted.

    Raises: UnfinishedToolCall when it ends within a string, MalformedToolCall for other faults.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, strict=False)
    except json.JSONDecodeError as error:
        is_cut = error.msg.startswith("Unterminated string")
        raise (UnfinishedToolCall if is_cut else MalformedToolCall)(error.msg) from error
    except MalformedToolCall:
        raise
    except (RecursionError, ValueError) as error:
        raise MalformedToolCall("nested too deep, or a number too long") from error


def _refuse_constant(name: str) -> Any:
    raise MalformedToolCall(f"{name} is not JSON")
