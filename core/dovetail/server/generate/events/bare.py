"""BareAnswer: an answer that may be nothing but calls without their markers.

Small models forget the tags. What follows such calls decides what they are, so nothing of them is
passed on before the text ends, or shows that it is something else.
"""

from __future__ import annotations

import re

from dovetail.interfaces.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.generate.events.region import LOOK_EVERY_CHARS, LOOK_EVERY_SHARE

OPENINGS = ("{", "[")
WORDS = ("name", "type", "function", "id", "arguments", "parameters")
"""Words in the head of a call that is written in JSON."""
_WORD = re.compile(r"[\w.\-]+")


def knows_bare(parser: ToolParser | None, tools: tuple[Tool, ...]) -> bool:
    """Return whether calls of these tools may come without markers."""
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
    """Return whether the beginning of a call ends within the name of one of these tools, or within
    a word that stands before it or its arguments."""
    last = _WORD.findall(text)[-1:]
    return any(
        name.startswith(word) for word in last for name in (*WORDS, *(t.name for t in tools))
    )


class BareAnswer:
    """The text from the answer's first bracket on."""

    def __init__(self, parser: ToolParser, tools: tuple[Tool, ...]) -> None:
        self.parser = parser
        self.tools = tools
        self._parts: list[str] = []
        self._num_chars = 0
        self._num_looked = 0

    def read(self, text: str) -> bool:
        """Take text; return whether all of it can still be calls. Mutates: self"""
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
        """Return the calls that the whole text is; none if it is something else."""
        try:
            return self.parser.bare(self.whole(), self.tools)
        except MalformedToolCall:
            return []

    def whole(self) -> str:
        """Return all text read so far."""
        return "".join(self._parts)
