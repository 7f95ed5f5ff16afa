"""Fields of other servers' requests, in a body: translated, ignored or refused.

What each means is in the tables of the kind `request_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from dovetail import registry
from dovetail.interfaces.data.request_field import RequestField, RequestFields, Sent
from dovetail.unsupported import sentence

KIND = "request_fields"
_NEEDED = ("mapped", "claimed", "refused")
_UNKNOWN = RequestField(how="ignored", what="", whose="")
Names = dict[str, str]
"""Fields here -> the fields as sent."""


@cache
def known_fields() -> RequestFields:
    """Return the rows of all tables. The first table that has a field decides."""
    found: dict[str, RequestField] = {}
    for name in registry.names(KIND):
        found = {**resolve_name(registry.admin.value_of(KIND, name)), **found}
    return found


def fault_of(name: str, value: Any, *, is_drawn: bool = True) -> str | None:
    """Return why an undeclared field cannot be honoured; None if it may be ignored. `is_drawn`: the
    model draws tokens; if not, nothing is lost with what is known of drawing."""
    row = known_fields().get(name)
    if row is None or row.how in ("ignored", "honoured") or row.asks_nothing(value):
        return None
    if row.how in ("mapped", "claimed") and not is_drawn:
        return None
    if row.how == "refused":
        return sentence(row.feature) if row.feature else f"{row.what}."
    return f"this API has no field for it ({row.what})."


def is_hint(name: str) -> bool:
    """Return whether a field is known to change nothing."""
    row = known_fields().get(name)
    return row is not None and row.how == "ignored"


def is_silent(name: str, value: Any) -> bool:
    """Return whether an unrefused field need not be reported, because its value asks nothing."""
    row = known_fields().get(name)
    return row is not None and row.how in _NEEDED and row.asks_nothing(value)


def translated(given: Mapping[str, Any], fields: frozenset[str]) -> tuple[dict[str, Any], Names]:
    """Return a body in the words of its API, which has these fields, and the names as sent.

    Raises: ValidationError
    """
    rows, body, names = known_fields(), dict(given), Names()
    for name, value in given.items():
        row = rows.get(name, _UNKNOWN)
        if row.read is None or (name in fields and not isinstance(value, row.also)):
            continue
        if row.asks_nothing(value):
            continue
        try:
            read = row.read(value, Sent(body=given, fields=fields))
            found = [(ours, theirs or name, one) for ours, theirs, one in read]
        except ValueError as error:
            raise _faulty(name, str(error)) from None
        if all(ours.partition(".")[0] in fields or ours == theirs for ours, theirs, _ in found):
            del body[name]
            for ours, theirs, one in found:
                _put(body, [ours] if ours == theirs else ours.split("."), one, theirs)
                names |= {ours: theirs} if ours != theirs else {}
    if rows.keys() & (body.keys() - given.keys()):
        body, more = translated(body, fields)
        names |= more
    return body, names


def _put(body: dict[str, Any], path: list[str], value: Any, sent_as: str) -> None:
    """Set a field, and the objects around it. Mutates: body. Raises: ValidationError if it is set
    to another value"""
    *outer, last = path
    for name in outer:
        inner = body.get(name)
        body[name] = dict(inner) if isinstance(inner, Mapping) else {}
        body = body[name]
    if body.get(last) not in (None, value):
        raise _faulty(sent_as, f"{'.'.join(path)} is set as well, to another value")
    body[last] = value


def _faulty(where: str, what: str) -> ValidationError:
    fault = PydanticCustomError("value_error", "{what}", {"what": what})
    details = InitErrorDetails(type=fault, loc=(*where.split("."),), input=None)
    return ValidationError.from_exception_data("body", [details])


def in_sent_words(error: ValidationError, names: Names) -> ValidationError:
    """Return an error of validation with the names as sent."""
    return ValidationError.from_exception_data(
        error.title, [_detail(one, names) for one in error.errors(include_url=False)]
    )


def _detail(one: Any, names: Names) -> InitErrorDetails:
    text = PydanticCustomError(one["type"], "{text}", {"text": one["msg"]})
    return InitErrorDetails(type=text, loc=_sent_place(one["loc"], names), input=one["input"])


def _sent_place(loc: Iterable[int | str], names: Names) -> tuple[int | str, ...]:
    place = tuple(loc)
    for ours, theirs in names.items():
        path = tuple(ours.split("."))
        if place[: len(path)] == path:
            return (*theirs.split("."), *place[len(path) :])
    return place
