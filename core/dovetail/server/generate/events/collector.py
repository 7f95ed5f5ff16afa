"""Collected: the non-streamed answer, which is its events joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dovetail.server.generate.events.types import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)


@dataclass(slots=True, kw_only=True)
class CollectedCall:
    """One complete tool call."""

    call_id: str
    name: str
    arguments: str = ""
    is_custom: bool = False


@dataclass(slots=True, kw_only=True)
class Collected:
    """One answer. `add` may be called with the events in any number of batches."""

    content_parts: list[str] = field(default_factory=list)
    reasoning_parts: list[str] = field(default_factory=list)
    calls: list[CollectedCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        """Append events. Mutates: self"""
        for event in events:
            match event:
                case ContentDelta(text=text):
                    self.content_parts.append(text)
                case ReasoningDelta(text=text):
                    self.reasoning_parts.append(text)
                case ToolCallStart(call_id=call_id, name=name, is_custom=is_custom):
                    call = CollectedCall(call_id=call_id, name=name, is_custom=is_custom)
                    self.calls.append(call)
                case ToolCallArgsDelta(index=index, text=text):
                    self.calls[index].arguments += text

    @property
    def content(self) -> str:
        """Return the joined content."""
        return "".join(self.content_parts)

    @property
    def reasoning(self) -> str:
        """Return the joined reasoning."""
        return "".join(self.reasoning_parts)
