"""CountedSession: a session that also counts the reasoning tokens.

A token counts by the state before it: the closing marker is reasoning, the opening one is not. If a
parser reads the answer itself, the state after it counts. Token ids are used only by such parsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.json_text import check
from dovetail.server.generate.events.custom_calls import CustomCalls
from dovetail.server.generate.events.plan import SessionPlan
from dovetail.server.generate.events.session import Session
from dovetail.server.generate.events.stages import StagedSession
from dovetail.server.generate.events.types import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)


class CountedSession:
    """One answer. `num_reasoning_tokens` grows with `feed`."""

    def __init__(self, plan: SessionPlan) -> None:
        self.session = StagedSession(plan) if plan.is_staged else Session(plan)
        self.num_reasoning_tokens = 0
        self._is_told_by_reader = plan.reasoning_reading is not None
        self._num_tokens = 0
        self._num_held = 0
        self._counts = plan.can_reason or bool(plan.stops) or plan.is_staged
        self._arguments: dict[int, list[str]] = {}
        self._call_ids: list[str] = []
        self._custom = CustomCalls(plan.custom) if plan.custom else None

    @property
    def matched(self) -> str | None:
        """Return the stop string that ended the content, or None."""
        return self.session.matched

    @property
    def has_unfinished_call(self) -> bool:
        """Return whether an emitted call has incomplete JSON arguments."""
        return any(check("".join(parts)).end is None for parts in self._arguments.values())

    def feed(self, text: str, token_ids: Sequence[int], num_chars: Sequence[int]) -> list[Event]:
        """Return the events of a text. `num_chars` is each token's share of it. Mutates: self"""
        if not self._counts or not token_ids:
            return self._feed(text, token_ids)
        events: list[Event] = []
        pieces = _pieces(text, len(token_ids), num_chars)
        for token_id, piece in zip(token_ids, pieces, strict=True):
            if self.session.is_held:
                self._num_held += 1
            elif not self._is_told_by_reader:
                self.num_reasoning_tokens += self.session.is_reasoning
            self._num_tokens += 1
            events += self._feed(piece, (token_id,))
            if self._is_told_by_reader:
                self.num_reasoning_tokens += self.session.is_reasoning
            if not self.session.is_held:
                self._count_held()
        return joined(events) if len(token_ids) > 1 else events

    def _feed(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        if isinstance(self.session, StagedSession):
            return self._noted(self.session.feed(text, token_ids, may_stop=self._may_stop()))
        return self._noted(self.session.feed(text, may_stop=self._may_stop()))

    def _noted(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, ToolCallStart):
                self._arguments[event.index] = []
                self._call_ids.append(event.call_id)
            elif isinstance(event, ToolCallArgsDelta):
                self._arguments[event.index].append(event.text)
        return events if self._custom is None else self._custom.read(events)

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events for text that was held back. Mutates: self"""
        events = self._noted(self.session.finish(is_cut=is_cut))
        if self.session.is_reasoning:
            self._count_held()
        if self._call_ids and (note := self.session.plan.note_calls) is not None:
            note(dict(zip(self._call_ids, map("".join, self._arguments.values()), strict=True)))
        return events

    def _count_held(self) -> None:
        """Count the held tokens that turned out to be reasoning instead of a call."""
        self.num_reasoning_tokens += self._num_held
        self._num_held = 0

    def _may_stop(self) -> bool:
        return self._num_tokens >= self.session.plan.min_tokens


def _pieces(text: str, num_tokens: int, num_chars: Sequence[int]) -> Iterator[str]:
    """Yield each token's share of the text. The rest belongs to the last token."""
    start = 0
    for position in range(num_tokens - 1):
        end = start + (num_chars[position] if position < len(num_chars) else 0)
        yield text[start:end]
        start = end
    yield text[start:]


def joined(events: Sequence[Event]) -> list[Event]:
    """Return the events, with adjacent ones of the same text merged."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        match last, event:
            case (ReasoningDelta(text=first), ReasoningDelta(text=second)):
                merged[-1] = ReasoningDelta(text=first + second)
            case (ContentDelta(text=first), ContentDelta(text=second)):
                merged[-1] = ContentDelta(text=first + second)
            case (
                ToolCallArgsDelta(index=index, text=first) as begun,
                ToolCallArgsDelta(index=other, text=second),
            ) if index == other:
                merged[-1] = replace(begun, text=first + second)
            case _:
                merged.append(event)
    return merged
