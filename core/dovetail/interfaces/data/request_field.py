"""RequestField: what a field of requests to other servers means here.

Tables of them are plugins of the kind `request_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Handling = Literal["honoured", "claimed", "mapped", "ignored", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request body as sent, and the names of the fields that its API has."""

    body: Mapping[str, Any]
    fields: frozenset[str]

    def has(self, field: str) -> bool:
        """Return whether the API has a field, which may be dotted."""
        return field.partition(".")[0] in self.fields


Reading = Callable[[Any, Sent], Iterable[tuple[str, str, Any]]]
"""From a value to (field here, field as sent, value); both names may be dotted. An empty second
name is the field itself. What has no meaning here has the same name twice, and is reported.
Raises: ValueError for a value that cannot be read"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """What a field means here, for readers in `what`, and whose it is.

    "honoured": APIs declare it, or a processor claims it; "claimed": one must. "mapped": `read`
    translates it, for APIs that have none of this name and, in any API, for values of the types
    `also`. "ignored": it changes no answer. "refused": it would change the answer, and `what` says
    why it cannot be had. Values in `neutral` ask for nothing; so do null, and empty and false ones
    unless `is_switch`.
    """

    how: Handling
    what: str
    whose: str
    neutral: tuple[Any, ...] = ()
    is_switch: bool = False
    read: Reading | None = None
    also: tuple[type, ...] = ()
    feature: str = ""

    def asks_nothing(self, value: Any) -> bool:
        """Return whether a value is neutral; True is not 1."""
        if value is None or (not self.is_switch and value in _NOTHING):
            return True
        is_bool = isinstance(value, bool)
        return any(value == one and is_bool == isinstance(one, bool) for one in self.neutral)


RequestFields = Mapping[str, RequestField]

_NOTHING: tuple[Any, ...] = (False, [], {}, "none", "auto", "")
