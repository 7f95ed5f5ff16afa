"""The events a session emits. Joined in order they are the whole answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentDelta:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """The start of a call. `index` counts the answer's calls from 0. `is_custom`: its tool takes
    text."""

    index: int
    call_id: str
    name: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArgsDelta:
    """More of a call's arguments: append-only JSON text, or the text input of a custom tool."""

    index: int
    text: str
    is_custom: bool = False


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArgsDelta
