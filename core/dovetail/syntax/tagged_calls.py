"""Calls written one after the other between tags: a head with the name, then a JSON object.

`TaggedCalls` says which tags a family uses. Arguments keep the model's own bytes. What `so_far` has
once said of a beginning stays true of every longer text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dovetail.interfaces.text import ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall
from dovetail.syntax.json_calls import object_at
from dovetail.syntax.json_text import skip_blanks, value_end


@dataclass(slots=True)
class _Read:
    """The calls of a text, the last perhaps cut. `over`: the text ended behind a closing tag.
    `fault`: what was wrong where reading stopped."""

    calls: list[ToolCall] = field(default_factory=list)
    is_over: bool = True
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """The tags of a call: `begin` head `middle` {...} `fence` `end`.

    `head` matches the whole head, blanks around it aside; its group "name" is the function, its
    group "id", if it has one, what the model calls the call. `fence` may be missing.
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
        found = self._read(text)
        for call in found.calls:
            object_at(call.arguments)
        if found.fault or not found.calls or not found.is_over:
            raise MalformedToolCall(found.fault or "no call, or one that is cut")
        return found.calls

    def so_far(self, text: str) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        found = self._read(text)
        if found.fault and not found.calls:
            raise MalformedToolCall(found.fault)
        return found.calls

    def _read(self, text: str) -> _Read:
        found, at = _Read(), skip_blanks(text)
        while at < len(text) and found.is_over and not found.fault:
            at = self._read_call(text, at, found)
        return found

    def _read_call(self, text: str, at: int, found: _Read) -> int:
        """Read one call; return where the next one begins. Mutates: found"""
        found.is_over = False
        at = self._behind(text, at, self.begin, found)
        middle = text.find(self.middle, at) if at >= 0 else -1
        if middle < 0:
            return at
        head = self.head.fullmatch(text[at:middle].strip())
        start = skip_blanks(text, middle + len(self.middle))
        if head is None:
            found.fault = "a call's head has no name"
        elif start < len(text) and text[start] != "{":
            found.fault = "the arguments are not an object"
        if head is None or found.fault or start >= len(text):
            return at
        end = value_end(text, start)
        groups = head.groupdict()
        found.calls.append(
            ToolCall(name=groups["name"], arguments=text[start:end], id=groups.get("id") or "")
        )
        return at if end is None else self._close(text, end, found)

    def _close(self, text: str, at: int, found: _Read) -> int:
        """Read the closing tags; return the place behind them. Mutates: found"""
        fenced = skip_blanks(text, at)
        if self.fence and text.startswith(self.fence, fenced):
            at = fenced + len(self.fence)
        at = self._behind(text, at, self.end, found)
        found.is_over = at >= 0
        return skip_blanks(text, at) if at >= 0 else at

    def _behind(self, text: str, at: int, tag: str, found: _Read) -> int:
        """Return the place behind a tag, or -1 where another text stands or the text ends.

        Mutates: found
        """
        at = skip_blanks(text, at)
        if text.startswith(tag, at):
            return at + len(tag)
        if not tag.startswith(text[at:]):
            found.fault = f"no {tag} at character {at + 1}"
        return -1
