"""The text-event pipeline: a model's text becomes reasoning, content and tool-call events.

Every endpoint uses it, streamed or not. It is independent of HTTP, tokens and model names.
"""

from dovetail.server.generate.events.collector import Collected, CollectedCall
from dovetail.server.generate.events.plan import SessionPlan
from dovetail.server.generate.events.session import Session
from dovetail.server.generate.events.token_counting import CountedSession
from dovetail.server.generate.events.types import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgsDelta,
    ToolCallStart,
)

__all__ = [
    "Collected",
    "CollectedCall",
    "ContentDelta",
    "CountedSession",
    "Event",
    "ReasoningDelta",
    "Session",
    "SessionPlan",
    "ToolCallArgsDelta",
    "ToolCallStart",
]
