"""StagedSession: one answer with a part that a parser reads itself.

The first stage reads the reasoning; the second looks for calls in the rest. Each stage is the
parser's own reader or the markers of an ordinary Session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from dovetail.engine.client.results.stop import StopMatcher
from dovetail.interfaces.answer_reader import HELD_ARGUMENTS_CHARS, Reading, ReadingPlan
from dovetail.interfaces.data.text import Markers, ToolCall
from dovetail.server.generate.events.plan import SessionPlan
from dovetail.server.generate.events.region import (
    LOOK_EVERY_CHARS,
    LOOK_EVERY_SHARE,
    Region,
    is_whole,
)
from dovetail.server.generate.events.session import Session
from dovetail.server.generate.events.types import ContentDelta, Event, ReasoningDelta


class Stage(Protocol):
    """A reader of one part of an answer."""

    @property
    def num_calls(self) -> int:
        """Return how many calls were emitted."""

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside the reasoning."""

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""

    def feed(self, text: str, token_ids: Sequence[int], *, may_stop: bool) -> list[Event]:
        """Return the events that this text completes. Mutates: self"""

    def finish(self, *, is_cut: bool) -> list[Event]:
        """Return the events for text that was held back. Mutates: self"""


class MarkerStage(Session):
    """An ordinary session, which ignores token ids."""

    def feed(  # type: ignore[override]
        self, text: str, token_ids: Sequence[int] = (), *, may_stop: bool = True
    ) -> list[Event]:
        """Return the events that this text completes. Mutates: self"""
        return super().feed(text, may_stop=may_stop)


class ReaderStage:
    """A parser's own reader. Its calls are emitted like a region's."""

    def __init__(self, reading: ReadingPlan, plan: SessionPlan) -> None:
        parser = plan.tool_parser
        ids = {"id_prefix": parser.id_prefix, "id_digits": parser.id_digits} if parser else {}
        self._reader = reading.begin()
        self._stops = StopMatcher(plan.stops, includes_stop=plan.includes_stop)
        self._region = Region(Markers(start=""), **ids)  # type: ignore[arg-type]
        self._max_calls = plan.max_calls
        self._calls: Sequence[ToolCall] = ()
        self._num_looked = 0
        self._is_reasoning = False

    @property
    def num_calls(self) -> int:
        """Return how many calls were emitted."""
        return self._region.num_told

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside the reasoning."""
        return self._is_reasoning

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""
        return self._stops.matched

    def feed(self, text: str, token_ids: Sequence[int], *, may_stop: bool) -> list[Event]:
        """Return the events that these tokens complete. Mutates: self"""
        if self.matched is not None:
            return []
        events = self._said(self._reader.read(text, token_ids), may_stop=may_stop)
        return events + self._grown() if self._is_time() else events

    def finish(self, *, is_cut: bool) -> list[Event]:
        """Return the events for text that was held back. Mutates: self"""
        if self.matched is not None:
            return []
        events = self._said(self._reader.finish(is_cut=is_cut), may_stop=True)
        calls = list(self._calls)
        call_events = self._region.tell(calls, 0, self._max_calls, may_be_cut=is_cut)
        untold = Reading(content="" if is_cut else self._region.untold(calls))
        events += [
            *self._held_text(),
            *call_events,
            *self._said(untold, may_stop=True),
            *self._held_text(),
        ]
        return events

    def _said(self, news: Reading, *, may_stop: bool) -> list[Event]:
        events: list[Event] = []
        if news.reasoning:
            events.append(ReasoningDelta(text=news.reasoning))
        content = self._stops.push(news.content, may_stop=may_stop) if news.content else ""
        if content:
            events.append(ContentDelta(text=content))
        if news.calls:
            self._calls = news.calls
        if news.reasoning or news.content or news.calls:
            self._is_reasoning = bool(news.reasoning and not (news.content or news.calls))
        return events

    def _held_text(self) -> list[Event]:
        """Return held-back text that might have been the start of a stop string."""
        text = self._stops.flush()
        return [ContentDelta(text=text)] if text else []

    def _is_time(self) -> bool:
        """Return whether the calls have grown enough to be parsed again, which reads all of
        them."""
        size = sum(len(call.name) + len(call.arguments) for call in self._calls)
        if size - self._num_looked < max(LOOK_EVERY_CHARS, size // LOOK_EVERY_SHARE):
            return False
        self._num_looked = size
        return True

    def _grown(self) -> list[Event]:
        """Return the events of the calls so far, in order."""
        calls = list(self._calls)
        waits = (i for i, call in enumerate(calls) if not _is_due(call))
        events = self._region.tell(calls[: next(waits, len(calls))], 0, self._max_calls)
        return [*self._held_text(), *events] if events else []


def _is_due(call: ToolCall) -> bool:
    return len(call.arguments) >= HELD_ARGUMENTS_CHARS or is_whole(call)


class StagedSession:
    """One answer. `num_calls` grows with `feed`."""

    is_held = False
    """Text read as reasoning never becomes a call."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self._reasoning = _reasoning_stage(plan)
        self._answer = _answer_stage(plan)
        self._ids: list[int] = []

    @property
    def num_calls(self) -> int:
        """Return how many calls were emitted."""
        return self._answer.num_calls

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""
        return self._answer.matched

    @property
    def is_reasoning(self) -> bool:
        """Return whether the text so far ends inside the reasoning."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    def feed(self, text: str, token_ids: Sequence[int], *, may_stop: bool = True) -> list[Event]:
        """Return the events that these tokens complete. Mutates: self

        A stop string that is completed while `may_stop` is false counts as ordinary text.
        """
        if self.matched is not None:
            return []
        if self._reasoning is None:
            return self._answer.feed(text, token_ids, may_stop=may_stop)
        was_reasoning = self.is_reasoning
        events = self._reasoning.feed(text, token_ids, may_stop=False)
        self._ids += token_ids
        passed_on = self._passed_on(events, may_stop=may_stop)
        if was_reasoning or self.is_reasoning:
            self._ids.clear()
        return passed_on

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events for text that was held back. Mutates: self

        `is_cut`: a limit ended the answer, so an unclosed call stays unclosed.
        """
        events: list[Event] = []
        if self._reasoning is not None:
            events = self._passed_on(self._reasoning.finish(is_cut=is_cut), may_stop=True)
        return events + self._answer.finish(is_cut=is_cut)

    def _passed_on(self, events: Sequence[Event], *, may_stop: bool) -> list[Event]:
        """Return the events, with content replaced by the next stage's. Mutates: self"""
        passed: list[Event] = []
        for event in events:
            if isinstance(event, ContentDelta):
                ids, self._ids = self._ids, []
                passed += self._answer.feed(event.text, ids, may_stop=may_stop)
            else:
                passed.append(event)
        return passed


def _reasoning_stage(plan: SessionPlan) -> Stage | None:
    if plan.reasoning_reading is not None:
        return ReaderStage(plan.reasoning_reading, replace(plan, tool_parser=None, stops=()))
    if plan.reasoning is None:
        return None
    alone = replace(plan, tool_parser=None, tool_reading=None, stops=(), reads_bare=False)
    return MarkerStage(alone)


def _answer_stage(plan: SessionPlan) -> Stage:
    if plan.tool_reading is not None:
        return ReaderStage(plan.tool_reading, plan)
    return MarkerStage(replace(plan, reasoning=None, reasoning_reading=None, starts_inside=False))
