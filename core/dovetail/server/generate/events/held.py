"""HeldCall: text inside unclosed thinking that starts like a tool call.

It is a call if the thinking is never closed: then the opening marker ended the thinking. The class
knows no session: the caller passes the events that the text would produce as content.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.server.generate.events.types import Event, ToolCallStart


class HeldCall:
    """The text from an opening marker on. `end` closes the thinking. `names` are the offered tools;
    a call of any other tool is part of the thinking."""

    def __init__(self, end: str, names: Collection[str]) -> None:
        self.end = end
        self.names = names
        self.is_call: bool | None = None
        self._parts: list[str] = []
        self._tail = ""

    def read(self, text: str) -> bool:
        """Append text; return whether it closes the thinking. Mutates: self"""
        self._parts.append(text)
        window = self._tail + text
        self._tail = window[-(len(self.end) - 1) :] if len(self.end) > 1 else ""
        return self.end in window

    def judge(self, events: Sequence[Event]) -> None:
        """Decide what the text is: a call if its first event is one. Mutates: self"""
        if self.is_call is None and events:
            first = events[0]
            self.is_call = isinstance(first, ToolCallStart) and (
                not self.names or first.name in self.names
            )

    def whole(self) -> str:
        """Return all text read so far."""
        return "".join(self._parts)
