"""BareAnswer: an answer that may consist only of calls without their markers.

Small models forget the tags. Text after such calls decides whether they are calls, so nothing is
emitted until the text ends or turns out to be something else.
"""

from __future__ import annotations

import re

from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.generate.events.region import LOOK_EVERY_CHARS, LOOK_EVERY_SHARE

OPENINGS = ("{", "[")
WORDS = ("name", "type", "function", "id", "arguments", "parameters")
"""The words in the head of a JSON call."""
_WORD = re.compile(r"[\w.\-]+")


def knows_bare(parser: ToolParser | None, tools: tuple[Tool, ...]) -> bool:
    """Return whether these tools may be called without markers."""
    if parser is None or not tools:
        return False
    try:
        parser.bare(OPENINGS[0], tools)
    except UnfinishedToolCall:
        return True
    except MalformedToolCall:
        return False
    return True


def may_name(text: str, tools: tuple[Tool, ...]) -> bool:
    """Return whether the start of a call ends within a tool's name or a word of the call's head."""
    last = _WORD.findall(text)[-1:]
    return any(
        name.startswith(word) for word in last for name in (*WORDS, *(t.name for t in tools))
    )


class BareAnswer:
    """The text of the answer from its first bracket on."""

    def __init__(self, parser: ToolParser, tools: tuple[Tool, ...]) -> None:
        self.parser = parser
        self.tools = tools
        self._parts: list[str] = []
        self._num_chars = 0
        self._num_looked = 0

    def read(self, text: str) -> bool:
        """Append text; return whether all of it can still be calls. Mutates: self"""
        self._parts.append(text)
        self._num_chars += len(text)
        grown = self._num_chars - self._num_looked
        if grown < max(LOOK_EVERY_CHARS, self._num_chars // LOOK_EVERY_SHARE):
            return True
        self._num_looked = self._num_chars
        try:
            self.parser.bare(self.whole(), self.tools)
        except UnfinishedToolCall:
            return True
        except MalformedToolCall:
            return False
        return True

    def calls(self) -> list[ToolCall]:
        """Return the calls that make up the whole text; empty if it is something else."""
        try:
            return self.parser.bare(self.whole(), self.tools)
        except MalformedToolCall:
            return []

    def whole(self) -> str:
        """Return all text read so far."""
        return "".join(self._parts)
