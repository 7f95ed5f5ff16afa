"""Parse JSON from untrusted sources: return the value, or raise one error that says what is wrong.

A parser can fail in many ways: text that is not JSON, invalid UTF-8, nesting deeper than Python's
stack, a number too long to read. A caller that catches only some of these could be crashed by the
others; here all become InvalidJson.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec


class InvalidJson(ValueError):
    """A text cannot be parsed to a usable value. The message completes a sentence about the text:
    "is nested too deep."."""


class TooDeep(InvalidJson):
    """The text may be JSON, but nests deeper than can be read."""


class WrongShape(InvalidJson):
    """The text is JSON, but not of the requested shape."""


def json_value(
    data: str | bytes | bytearray,
    *,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
    strict: bool = True,
) -> Any:
    """Return the value of a JSON text, as Python's `json` reads it. Raises: InvalidJson"""
    try:
        return json.loads(
            data, object_hook=object_hook, parse_constant=parse_constant, strict=strict
        )
    except (ValueError, RecursionError, OverflowError) as error:
        raise _fault(error) from error


def json_struct(data: str | bytes | bytearray, kind: Any = Any) -> Any:
    """Return the value of a JSON text as a type of msgspec's. Raises: InvalidJson; its subclass
    WrongShape means that the text is JSON"""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise _fault(error) from error


def body_fault(error: Exception) -> str:
    """Return what is wrong with a request's body that could not be read as JSON, and where."""
    if isinstance(error, InvalidJson) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, json.JSONDecodeError):
        return not_json(error.msg, error.pos)
    return f"the request body is not valid JSON: it {_fault(error)}"


def not_json(why: str, place: int) -> str:
    """Return a message that a request's body is not JSON from a given character on."""
    return f"the request body is not valid JSON: {why[0].lower()}{why[1:]} at character {place}."


def _fault(error: Exception) -> InvalidJson:
    match error:
        case RecursionError():
            return TooDeep("is nested too deep.")
        case UnicodeError():
            return InvalidJson("is not valid Unicode.")
        case msgspec.ValidationError():
            return WrongShape(f"has a value of another kind: {error}.")
        case json.JSONDecodeError() | msgspec.MsgspecError():
            return InvalidJson(f"is not valid JSON: {error}.")
        case _:
            return InvalidJson(f"has a value that cannot be read: {error}.")
