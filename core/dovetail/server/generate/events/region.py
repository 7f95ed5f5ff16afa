"""Region: the text of one open tool region. Its end and its calls are found incrementally.

It handles markers and tracks what was emitted; the parser interprets the text.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from dovetail.interfaces.answer_reader import HELD_ARGUMENTS_CHARS
from dovetail.interfaces.data.text import Markers, ToolCall
from dovetail.json_text import check
from dovetail.server.generate.events.matcher import find_first, partial_length
from dovetail.server.generate.events.types import Event, ToolCallArgsDelta, ToolCallStart

MAX_OTHERS = 8
"""How many further opening markers are tried as the end of a call."""
LOOK_EVERY_CHARS = 16
LOOK_EVERY_SHARE = 8
"""A growing body is parsed again after this many characters, or this share of it. Every parse reads
all of it; this way their total cost stays linear."""


_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"?', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(slots=True, kw_only=True)
class _Told:
    """A call of the region that was emitted at least in part. `index` None: above the limit."""

    index: int | None
    num_chars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A marker that was just read. `opens`: it starts another region instead of ending this one.
    `rest` is the text after it."""

    text: str
    opens: bool
    rest: str


class Region:
    """One region. `read` takes text, `body` is passed to the parser.

    `others` are the markers that may end a call without an end marker. `used_ids` are the ids of
    the answer's calls so far: an id from the model is used only once.
    """

    def __init__(
        self,
        markers: Markers,
        *,
        others: tuple[str, ...] = (),
        id_prefix: str = "call_",
        id_digits: int = 24,
        used_ids: set[str] | None = None,
    ) -> None:
        self.markers = markers
        self.id_prefix = id_prefix
        self.id_digits = id_digits
        self._used_ids = set() if used_ids is None else used_ids
        self.num_ends = 0
        self.num_others = 0
        self._others = tuple(text for text in others if text != markers.end)
        self._parts: list[str] = [markers.start] if markers.is_body else []
        self._num_chars = len(markers.start) if markers.is_body else 0
        self._tail = ""
        self._num_marked = 0
        self._first_end: int | None = None
        self._num_looked = 0
        self._told: dict[int, _Told] = {}

    @property
    def has_told(self) -> bool:
        """Return whether any of its calls was emitted."""
        return bool(self._told)

    def _sought(self) -> tuple[str, ...]:
        others = self._others if self.num_others < MAX_OTHERS else ()
        return (self.markers.end, *others) if self.markers.end else ()

    def read(self, text: str, *, is_final: bool) -> Mark | None:
        """Append text up to and including the next end or opening marker; return the marker or
        None."""
        sought = self._sought()
        window = self._tail + text
        match = find_first(window, sought)
        num_pending = 0 if is_final else partial_length(window, sought)
        if match is None or (num_pending and len(window) - num_pending <= match.start):
            self._add(text)
            keep = max(map(len, sought), default=1) - 1
            self._tail = window[-keep:] if keep > 0 else ""
            return None
        marker = sought[match.which]
        cut = match.start + len(marker) - len(self._tail)
        if cut < 0:  # It waited for a longer marker, which did not come.
            text, cut = self.cut(self._num_chars + cut) + text, 0
        self._add(text[:cut])
        self._tail = ""
        self._num_marked = len(marker)
        is_end = match.which == 0
        self.num_ends += is_end
        if is_end and self._first_end is None:
            self._first_end = self._num_chars
        self.num_others += not is_end
        return Mark(text=marker, opens=not is_end, rest=text[cut:])

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._num_chars += len(text)

    def cut(self, at: int) -> str:
        """Truncate the body at a position; return the rest. Mutates: self"""
        text = self.whole()
        self._parts = [text[:at]]
        self._num_chars = at
        return text[at:]

    def whole(self) -> str:
        """Return all text read so far, markers included."""
        return "".join(self._parts)

    def at_first_end(self) -> tuple[str, str]:
        """Return (the body up to its first end marker, what follows the marker)."""
        text = self.whole()
        assert self._first_end is not None
        return text[: self._first_end - len(self.markers.end)], text[self._first_end :]

    def body(self) -> str:
        """Return the text before the last marker read."""
        return self.whole()[: -self._num_marked]

    def growing_body(self) -> str | None:
        """Return the text so far, without a possible partial marker, if it is due to be parsed;
        else None. Mutates: self"""
        grown = self._num_chars - self._num_looked
        if grown < max(LOOK_EVERY_CHARS, self._num_chars // LOOK_EVERY_SHARE):
            return None
        self._num_looked = self._num_chars
        text = self.whole()
        return text[: len(text) - partial_length(text, self._sought())]

    def unread(self) -> str:
        """Return the text after the opening marker, to be parsed as ordinary text."""
        text = self.whole()
        return text[len(self.markers.start) :] if self.markers.is_body else text

    def tell(
        self,
        calls: list[ToolCall],
        num_calls: int,
        max_calls: int | None,
        *,
        may_be_cut: bool = False,
        is_growing: bool = False,
    ) -> list[Event]:
        """Return the events for what is new in the calls so far. Mutates: self

        Arguments are emitted as far as they are valid JSON: from the start once they are complete
        or too long to hold back, or, with `may_be_cut`, if the text ends inside the last call.
        `num_calls` were emitted before this region; calls above `max_calls` are dropped.
        `is_growing`: more text follows, so the last call may wait for its id.
        """
        events: list[Event] = []
        for position, call in enumerate(calls):
            arguments, is_whole, is_broken = _sure(call)
            is_last = position == len(calls) - 1
            if position not in self._told:
                if is_growing and call.may_be_named:
                    continue
                is_cut = may_be_cut and is_last and not is_broken
                if not (is_whole or is_cut or len(arguments) >= HELD_ARGUMENTS_CHARS):
                    continue
                events += self._begin(position, call, num_calls + len(self._told), max_calls)
            progress = self._told[position]
            more = _escaped(arguments)[progress.num_chars :]
            progress.num_chars += len(more)
            if more and progress.index is not None:
                events.append(ToolCallArgsDelta(index=progress.index, text=more))
        return events

    def _begin(
        self, position: int, call: ToolCall, number: int, max_calls: int | None
    ) -> list[ToolCallStart]:
        is_over = max_calls is not None and number >= max_calls
        self._told[position] = _Told(index=None if is_over else number)
        if is_over:
            return []
        call_id = call.id if call.id and call.id not in self._used_ids else self._new_id()
        self._used_ids.add(call_id)
        return [ToolCallStart(index=number, call_id=call_id, name=call.name)]

    def untold(self, calls: list[ToolCall]) -> str:
        """Return the text of calls that were not emitted, as far as the parser provides it."""
        return "".join(c.text for position, c in enumerate(calls) if position not in self._told)

    def _new_id(self) -> str:
        return self.id_prefix + secrets.token_hex(self.id_digits // 2 + 1)[: self.id_digits]

    @property
    def num_told(self) -> int:
        """Return how many of its calls were emitted."""
        return sum(call.index is not None for call in self._told.values())


def is_whole(call: ToolCall) -> bool:
    """Return whether a call's arguments are exactly one JSON object."""
    return _sure(call)[1]


def only_closes(calls: list[ToolCall], begun: list[ToolCall]) -> bool:
    """Return whether complete calls add only closing braces to what was certain before."""
    sure = [call.arguments for call in begun] + ["{"] * (len(calls) - len(begun))
    return all(
        call.arguments in (before, before + "}") for call, before in zip(calls, sure, strict=False)
    )


def _sure(call: ToolCall) -> tuple[str, bool, bool]:
    """Return (the arguments as far as they are valid JSON, is_whole, is_broken)."""
    text = call.arguments
    if not (call.name and text.startswith("{")):
        return "", False, True
    checked = check(text)
    is_broken = bool(call.text) or checked.fault is not None
    if checked.end is not None and (is_broken or text[checked.end :].strip()):
        return text[: checked.end], False, True
    return text[: checked.fault], checked.end is not None, is_broken


def _escaped(arguments: str) -> str:
    """Return arguments with the control characters in their strings escaped. Models write raw line
    ends there, which clients' JSON parsers reject. The rest is unchanged."""
    if _CONTROL.search(arguments) is None:
        return arguments
    return _STRING.sub(lambda string: _CONTROL.sub(_escape, string[0]), arguments)


def _escape(character: re.Match[str]) -> str:
    return json.dumps(character[0])[1:-1]
