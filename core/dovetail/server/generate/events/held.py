"""HeldCall: what opens like a call within thinking that may still be closed.

It is a call if the thinking is never closed: then its opening marker ended it. Knows no session: it
is given what the text would come to if it were content.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail.server.generate.events.types import Event, ToolCallStart


class HeldCall:
    """The text from an opening marker on. `end` is what closes the thinking, `names` are the tools
    that were offered: a call of another one is thought of, not made."""

    def __init__(self, end: str, names: Collection[str]) -> None:
        self.end = end
        self.names = names
        self.is_call: bool | None = None
        self._parts: list[str] = []
        self._tail = ""

    def read(self, text: str) -> bool:
        """Take text; return whether the thinking is closed in it. Mutates: self"""
        self._parts.append(text)
        window = self._tail + text
        self._tail = window[-(len(self.end) - 1) :] if len(self.end) > 1 else ""
        return self.end in window

    def judge(self, events: Sequence[Event]) -> None:
        """Decide what the text is: a call if that comes first. Mutates: self"""
        if self.is_call is None and events:
            first = events[0]
            self.is_call = isinstance(first, ToolCallStart) and (
                not self.names or first.name in self.names
            )

    def whole(self) -> str:
        """Return all text read so far."""
        return "".join(self._parts)
