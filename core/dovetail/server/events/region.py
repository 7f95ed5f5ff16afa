"""Region: the text of one open tool region, its end searched for once, its calls told once.

Knows markers and what has been passed on; the parser says what the text means.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from dovetail.interfaces.text import Markers, ToolCall
from dovetail.server.events.matcher import partial_length
from dovetail.server.events.types import Event, ToolCallArgsDelta, ToolCallStart

LOOK_EVERY_CHARS = 16
LOOK_EVERY_SHARE = 8
"""A growing body is looked at again after so many characters, or this share of it: every look
reads all of it, so the looks together stay linear."""


_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(slots=True, kw_only=True)
class _Told:
    """A call of the region of which something was passed on; `index` None: beyond the limit."""

    index: int | None
    num_chars: int = 0


class Region:
    """One region. `read` takes text, `body` is what the parser gets."""

    def __init__(self, markers: Markers, *, id_prefix: str = "call_", id_digits: int = 24) -> None:
        self.markers = markers
        self.id_prefix = id_prefix
        self.id_digits = id_digits
        self.num_ends = 0
        self._parts: list[str] = [markers.start] if markers.is_body else []
        self._num_chars = len(markers.start) if markers.is_body else 0
        self._tail = ""
        self._first_end: int | None = None
        self._num_looked = 0
        self._told: list[_Told] = []

    @property
    def has_told(self) -> bool:
        """Return whether any of its calls was passed on."""
        return bool(self._told)

    def read(self, text: str) -> str | None:
        """Take text up to and with the end marker; return what follows it, or None."""
        end = self.markers.end
        window = self._tail + text
        at = window.find(end) if end else -1
        if at < 0:
            self._add(text)
            keep = len(end) - 1
            self._tail = window[-keep:] if keep > 0 else ""
            return None
        cut = at + len(end) - len(self._tail)
        self._add(text[:cut])
        self._tail = ""
        self.num_ends += 1
        if self._first_end is None:
            self._first_end = self._num_chars
        return text[cut:]

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._num_chars += len(text)

    def go_on(self) -> None:
        """Treat the end marker just read as part of the body."""
        self._tail = ""

    def cut(self, at: int) -> str:
        """End the body at a place of it; return what follows. Mutates: self"""
        text = self.whole()
        self._parts = [text[:at]]
        self._num_chars = at
        return text[at:]

    def whole(self) -> str:
        """Return all text read so far, end markers included."""
        return "".join(self._parts)

    def body(self) -> str:
        """Return the text before the end marker just read."""
        return self.whole()[: -len(self.markers.end)]

    def growing_body(self) -> str | None:
        """Return the text so far without what may be the beginning of its end marker, when it is
        time to look at it again; else None. Mutates: self"""
        grown = self._num_chars - self._num_looked
        if grown < max(LOOK_EVERY_CHARS, self._num_chars // LOOK_EVERY_SHARE):
            return None
        self._num_looked = self._num_chars
        text = self.whole()
        held = partial_length(text, (self.markers.end,)) if self.markers.end else 0
        return text[: len(text) - held]

    def split_at_first_end(self, rest: str) -> tuple[str, str]:
        """Return (the region as plain text, what follows): it ends at its first end marker."""
        text = self.whole()
        cut = len(text) if self._first_end is None else self._first_end
        opening = "" if self.markers.is_body else self.markers.start
        return opening + text[:cut], text[cut:] + rest

    def tell(self, calls: list[ToolCall], num_calls: int, most: int | None) -> list[Event]:
        """Return the events for what is new in the calls so far. Mutates: self

        `num_calls` were told before this region; calls beyond `most` are left out.
        """
        events: list[Event] = []
        for position, call in enumerate(calls):
            if position == len(self._told):
                number = num_calls + position
                is_over = most is not None and number >= most
                self._told.append(_Told(index=None if is_over else number))
                if not is_over:
                    call_id = call.id or self._new_id()
                    events.append(ToolCallStart(index=number, call_id=call_id, name=call.name))
            told = self._told[position]
            more = _escaped(call.arguments)[told.num_chars :]
            told.num_chars += len(more)
            if more and told.index is not None:
                events.append(ToolCallArgsDelta(index=told.index, text=more))
        return events

    def _new_id(self) -> str:
        return self.id_prefix + secrets.token_hex(self.id_digits // 2 + 1)[: self.id_digits]

    @property
    def num_told(self) -> int:
        """Return how many of its calls were passed on."""
        return sum(told.index is not None for told in self._told)


def _escaped(arguments: str) -> str:
    """Return arguments with the control characters in their strings escaped: models write line
    ends there as they are, and no client's reader of JSON takes them. The rest is the model's own.
    """
    if _CONTROL.search(arguments) is None:
        return arguments
    return _STRING.sub(lambda string: _CONTROL.sub(_escape, string[0]), arguments)


def _escape(character: re.Match[str]) -> str:
    return json.dumps(character[0])[1:-1]
