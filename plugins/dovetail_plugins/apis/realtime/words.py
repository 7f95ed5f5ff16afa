"""What a session writes to its client: OpenAI's events, or vLLM's. Source: as `protocol`"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.server.endpoint import Problem
from dovetail_plugins.apis.realtime.items import Item, Part
from dovetail_plugins.apis.realtime.protocol import AnySettings

Fields = Mapping[str, Any]
HEARD = "conversation.item.input_audio_transcription"


def new_id(kind: str) -> str:
    """Return an id: "item_" or another kind, and random letters."""
    return f"{kind}_{secrets.token_hex(12)}"


class Words(ABC):
    """The events of one dialect; each method returns the events of one occasion. Dialects may have
    none for those that no client waits for."""

    def updated(self, session_id: str, expires_s: int, settings: AnySettings) -> list[Fields]:
        """Return the events after the settings changed."""
        return []

    def cleared(self) -> list[Fields]:
        """Return the events after the sound was dropped."""
        return []

    def started(self, item_id: str, at_ms: int) -> list[Fields]:
        """Return the events at the begin of a turn."""
        return []

    def stopped(self, item_id: str, at_ms: int) -> list[Fields]:
        """Return the events at the end of a turn."""
        return []

    def committed(self, item_id: str, last_id: str | None) -> list[Fields]:
        """Return the events after sound became an item, which follows another."""
        return []

    def added(self, item: Item, last_id: str | None) -> list[Fields]:
        """Return the events after an item was added, which follows another."""
        return []

    @abstractmethod
    def delta(self, item_id: str, text: str) -> list[Fields]:
        """Return the events of a piece of an item's text."""

    @abstractmethod
    def completed(self, item_id: str, text: str, seconds: float) -> list[Fields]:
        """Return the events of an item's whole text."""

    @abstractmethod
    def failed(self, item_id: str, problem: Problem) -> list[Fields]:
        """Return the events of an item that has no text."""

    @abstractmethod
    def error(self, problem: Problem, event_id: str | None) -> list[Fields]:
        """Return the events of an error, which a client's event may have caused."""


class OpenAIWords(Words):
    """OpenAI's events."""

    def created(self, session_id: str, expires_s: int, settings: AnySettings) -> list[Fields]:
        """Return the first event of a session."""
        return [_session("session.created", session_id, expires_s, settings)]

    def updated(self, session_id: str, expires_s: int, settings: AnySettings) -> list[Fields]:
        """Return the settings in force."""
        return [_session("session.updated", session_id, expires_s, settings)]

    def cleared(self) -> list[Fields]:
        """Return the answer to input_audio_buffer.clear."""
        return [new_event("input_audio_buffer.cleared")]

    def started(self, item_id: str, at_ms: int) -> list[Fields]:
        """Return that speech was heard."""
        name = "input_audio_buffer.speech_started"
        return [new_event(name, item_id=item_id, audio_start_ms=at_ms)]

    def stopped(self, item_id: str, at_ms: int) -> list[Fields]:
        """Return that speech ended."""
        name = "input_audio_buffer.speech_stopped"
        return [new_event(name, item_id=item_id, audio_end_ms=at_ms)]

    def committed(self, item_id: str, last_id: str | None) -> list[Fields]:
        """Return that sound became an item of the conversation."""
        item = Item(role="user", id=item_id, content=(Part(type="input_audio"),))
        commit = "input_audio_buffer.committed"
        return [
            new_event(commit, item_id=item_id, previous_item_id=last_id),
            *self.added(item, last_id),
        ]

    def added(self, item: Item, last_id: str | None) -> list[Fields]:
        """Return that the conversation has an item, which follows another."""
        shown = item.shown()
        return [
            new_event(f"conversation.item.{name}", item=shown, previous_item_id=last_id)
            for name in ("added", "done")
        ]

    def delta(self, item_id: str, text: str) -> list[Fields]:
        """Return a piece of a transcript."""
        return [new_event(f"{HEARD}.delta", item_id=item_id, content_index=0, delta=text)]

    def completed(self, item_id: str, text: str, seconds: float) -> list[Fields]:
        """Return a transcript."""
        usage = {"type": "duration", "seconds": seconds}
        name = f"{HEARD}.completed"
        return [new_event(name, item_id=item_id, content_index=0, transcript=text, usage=usage)]

    def failed(self, item_id: str, problem: Problem) -> list[Fields]:
        """Return why there is no transcript."""
        error = _error(problem)
        return [new_event(f"{HEARD}.failed", item_id=item_id, content_index=0, error=error)]

    def error(self, problem: Problem, event_id: str | None) -> list[Fields]:
        """Return an error."""
        return [new_event("error", error={**_error(problem), "event_id": event_id})]


class PlainWords(Words):
    """vLLM's events: texts and errors alone."""

    def delta(self, item_id: str, text: str) -> list[Fields]:
        """Return a piece of a transcript."""
        return [{"type": "transcription.delta", "delta": text}]

    def completed(self, item_id: str, text: str, seconds: float) -> list[Fields]:
        """Return a transcript."""
        usage = {"type": "duration", "seconds": seconds}
        return [{"type": "transcription.done", "text": text, "usage": usage}]

    def failed(self, item_id: str, problem: Problem) -> list[Fields]:
        """Return why there is no transcript."""
        return self.error(problem, None)

    def error(self, problem: Problem, event_id: str | None) -> list[Fields]:
        """Return an error."""
        info = problem.info
        return [{"type": "error", "error": info.message, "code": info.code or info.type}]


def new_event(kind: str, **fields: Any) -> Fields:
    """Return an event of OpenAI's, with an id."""
    return {"type": kind, "event_id": new_id("event"), **fields}


def _session(kind: str, session_id: str, expires_s: int, settings: AnySettings) -> Fields:
    is_talk = settings.type == "realtime"
    facts = {
        "id": session_id,
        "object": "realtime.session" if is_talk else "realtime.transcription_session",
        "expires_at": expires_s,
        "created": int(time.time()),
        **msgspec.to_builtins(settings),
    }
    # vLLM's clients look for the id at the top.
    return {**new_event(kind, session=facts), "id": session_id, "created": facts["created"]}


def _error(problem: Problem) -> dict[str, Any]:
    info = problem.info
    kind = info.type if problem.status < 500 else "server_error"
    return {"type": kind, "code": info.code, "message": info.message, "param": info.param}
