"""Speech: the text emitted so far: blanks around regions, stop strings, events.

Blanks around a region are layout. Content after a region is separated from the content before it by
the blanks before the region, or else by those after it.
"""

from __future__ import annotations

from dovetail.engine.client.results.stop import StopMatcher
from dovetail.server.generate.events.types import ContentDelta, Event, ReasoningDelta


class Speech:
    """`has_said`: text was emitted since the last region. `has_answered`: any content was."""

    def __init__(self, stops: StopMatcher, *, is_reasoning: bool) -> None:
        self.stops = stops
        self.is_reasoning = is_reasoning
        self.has_said = False
        self.has_answered = False
        self.may_stop = True
        self._events: list[Event] = []
        self._blank: list[str] = []
        self._skips_blank = is_reasoning
        self._gap_before = ""
        self._gap_behind = ""

    def take(self) -> list[Event]:
        """Return and remove the pending events. Mutates: self"""
        events, self._events = self._events, []
        return events

    def add(self, events: list[Event]) -> None:
        """Append events of calls. A stop string cannot continue across them. Mutates: self"""
        if events:
            self.say_held()
        self._events += events

    def say(self, text: str, *, is_settled: bool = False) -> None:
        """Emit text. Trailing blanks wait until more text follows, unless only text can."""
        if self._skips_blank:
            stripped = text.lstrip()
            self._gap_behind += "" if self.is_reasoning else text[: len(text) - len(stripped)]
            text = stripped
        if not text:
            return
        if self._skips_blank and not self.is_reasoning:
            self._close_gap()
        self._skips_blank = False
        body = text.rstrip()
        self.has_said = self.has_said or bool(body)
        body = text if is_settled and self.has_said else body
        if body:
            self._emit("".join(self._blank) + body)
            self._blank = []
        if len(body) < len(text):
            self._blank.append(text[len(body) :])

    def _close_gap(self) -> None:
        if self.has_answered:
            self._blank = [self._gap_before or self._gap_behind]
        self._gap_before = self._gap_behind = ""

    def set_apart(self) -> None:
        """Treat the blanks before a region as layout."""
        if self.has_answered and not self.is_reasoning and not self._gap_before:
            self._gap_before = "".join(self._blank)
        self._blank = []

    def leave(self, *, is_reasoning: bool) -> None:
        """Switch to the next region."""
        self.set_apart()
        self.is_reasoning = is_reasoning
        self.has_said = False
        self._skips_blank = True

    def _emit(self, text: str) -> None:
        if self.is_reasoning:
            self._events.append(ReasoningDelta(text=text))
            return
        self.has_answered = True
        text = self.stops.push(text, may_stop=self.may_stop)
        if text:
            self._events.append(ContentDelta(text=text))

    def say_held(self) -> None:
        """Emit held-back text that might have been the start of a stop string."""
        text = self.stops.flush()
        if text:
            self._events.append(ContentDelta(text=text))

    def finish(self) -> None:
        """Emit all held-back text. Mutates: self"""
        if self._blank:
            self._emit("".join(self._blank))
            self._blank = []
        self.say_held()
