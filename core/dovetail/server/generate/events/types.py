"""The events a session emits. Joined in order they are the whole answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentDelta:
    """More of the answer proper."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """A call begins; `index` counts the calls of this answer from 0. `is_custom`: its tool takes
    text."""

    index: int
    call_id: str
    name: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArgsDelta:
    """More of a call's arguments: append-only JSON text, or the text that a custom tool takes."""

    index: int
    text: str
    is_custom: bool = False


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArgsDelta
