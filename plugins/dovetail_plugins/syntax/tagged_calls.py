"""Consecutive calls written between tags: a head with the name, then a JSON object.

`TaggedCalls` says which tags a family uses. Arguments keep the model's own bytes. A broken call
ends at its own closing tag, or at the next call, and the others stay calls. What `so_far` returns
for a prefix stays true for every longer text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from dovetail.interfaces.data.text import ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.json_text import check, skip_blanks
from dovetail_plugins.syntax.json_calls import object_at

MAX_TAG_CHARS = 64


@dataclass(slots=True)
class _Read:
    """The calls in a text, the last perhaps cut off. `at`: the position after the last finished
    call. `is_over`: the text ended there. `fault`: what is wrong after it."""

    calls: list[ToolCall] = field(default_factory=list)
    at: int = 0
    is_over: bool = True
    fault: str = ""

    def go_on(self, text: str, at: int) -> None:
        """Be over at this place."""
        self.at = skip_blanks(text, at)
        self.is_over = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """The tags of a call: `begin` head `middle` {...} `fence` `end`.

    `head` matches the whole head without surrounding blanks; its group "name" is the function, its
    optional group "id" the model's id of the call. `fence` may be missing.
    """

    begin: str
    middle: str
    end: str
    head: re.Pattern[str]
    fence: str = ""

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a whole text.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a string.
        """
        reading = self._read(text)
        for call in reading.calls:
            if not call.text:
                object_at(call.arguments)
        if reading.fault or not reading.is_over or all(call.text for call in reading.calls):
            raise MalformedToolCall(reading.fault or "no call, or one that is cut")
        return reading.calls

    def so_far(self, text: str) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        found = self._read(text)
        if found.fault and not found.calls:
            raise MalformedToolCall(found.fault)
        return found.calls

    def first_end(self, text: str) -> int | None:
        """Return where the first call of a text ends, or None while that is not known."""
        found = _Read(at=skip_blanks(text), is_over=False)
        if not text.startswith(self.begin, found.at):
            return None
        self._read_call(text, found)
        return len(text[: found.at].rstrip()) if found.is_over else None

    def _read(self, text: str) -> _Read:
        found = _Read(at=skip_blanks(text))
        while found.at < len(text) and found.is_over:
            found.is_over = False
            if text.startswith(self.begin, found.at):
                self._read_call(text, found)
            elif not self.begin.startswith(text[found.at :]):
                self._skip(text, found)
        return found

    def _skip(self, text: str, found: _Read) -> None:
        """Continue with the next call after text that is no call. Mutates: found"""
        at = text.find(self.begin, found.at) if found.calls else -1
        if at < 0:
            found.fault = f"no {self.begin} at character {found.at + 1}"
        else:
            found.calls.append(ToolCall(name="", arguments="", text=text[found.at : at]))
            found.go_on(text, at)

    def _read_call(self, text: str, found: _Read) -> None:
        """Read one call, and move the position past it if it is finished. Mutates: found"""
        at = found.at + len(self.begin)
        middle = text.find(self.middle, at)
        bound = self._bound(text, at)
        if middle < 0 or -1 < bound < middle:
            self._break_off(text, bound, found, None)
            return
        head = self.head.fullmatch(text[at:middle].strip())
        start = skip_blanks(text, middle + len(self.middle))
        if head is not None and text[start : start + 1] == "{":
            self._read_arguments(text, start, head, found)
        elif head is None or start < len(text):
            self._break_off(text, bound, found, None)

    def _read_arguments(self, text: str, at: int, head: re.Match[str], found: _Read) -> None:
        """Read a call's arguments and its closing tags. Mutates: found"""
        checked = check(text, at)
        closing = text.find(self.end, at)
        end = checked.end
        if end is None:
            end = len(text) if checked.fault is None else checked.fault + 1
            end = end if closing < 0 else min(end, closing)
        groups = head.groupdict()
        call = ToolCall(name=groups["name"], arguments=text[at:end], id=groups.get("id") or "")
        if checked.fault is not None:
            self._break_off(text, self._bound(text, at), found, call)
            return
        found.calls.append(call)
        if checked.end is not None:
            self._close(text, checked.end, found)

    def _close(self, text: str, at: int, found: _Read) -> None:
        """Read the closing tags, as far as they have arrived. Mutates: found"""
        at = skip_blanks(text, at)
        if self.fence and text.startswith(self.fence, at):
            at = skip_blanks(text, at + len(self.fence))
        rest = text[at : at + MAX_TAG_CHARS]
        if any(tag.startswith(rest) for tag in (self.fence, self.end, self.begin)):
            return
        bound = at if rest.startswith(self.begin) else self._bound(text, at)
        if bound >= 0:
            found.go_on(text, self._behind(text, bound))
        else:
            found.fault = f"no {self.end} at character {at + 1}"

    def _break_off(self, text: str, bound: int, found: _Read, call: ToolCall | None) -> None:
        """Leave a broken call at its end, if that is known. Mutates: found"""
        if bound >= 0:
            behind = self._behind(text, bound)
            written = text[found.at : behind]
            broken_call = call or ToolCall(name="", arguments="")
            found.calls.append(replace(broken_call, text=written))
            found.go_on(text, behind)
        elif call is not None:
            found.calls.append(call)

    def _bound(self, text: str, at: int) -> int:
        """Return the place of the next closing tag, or of the next call's beginning, or -1."""
        found = [place for tag in (self.end, self.begin) if (place := text.find(tag, at)) >= 0]
        return min(found, default=-1)

    def _behind(self, text: str, bound: int) -> int:
        """Return where the text after a call begins."""
        return bound + len(self.end) if text.startswith(self.end, bound) else bound
