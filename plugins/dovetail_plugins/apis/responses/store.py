"""ResponseStore: responses that clients may come back to, limited in bytes and in time.

They are in the memory of one process (`owned`) and belong to the key of their request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.errors import NotFound
from dovetail.json_values import json_value
from dovetail_plugins.apis.responses.event_log import EventLog
from dovetail_plugins.apis.responses.owned import OwnedObjects

MAX_BYTES = 64 << 20
KEPT_S = 3600.0


class LiveResponse(Protocol):
    """A response that may still grow."""

    id: str

    def encoded(self) -> bytes:
        """Return its current JSON."""


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """One response. While it runs it is `answer`; afterwards `reply` and `messages` are its JSON.

    `messages` are the turns of the conversation including this answer. `items` is the JSON of the
    response's input. `events` is its stream, if it is streamed in the background.
    """

    owner: str
    since_s: float
    is_background: bool
    events: EventLog | None = None
    answer: LiveResponse | None = None
    task: asyncio.Task[None] | None = None
    reply: bytes = b""
    messages: bytes = b""
    items: bytes = b"[]"

    @property
    def num_bytes(self) -> int:
        """Return its memory size in bytes."""
        events = 0 if self.events is None else self.events.num_bytes
        return len(self.reply) + len(self.messages) + len(self.items) + events

    def reply_json(self) -> bytes:
        """Return the current response."""
        return self.reply if self.answer is None else self.answer.encoded()


class ResponseStore:
    """Responses by id. Running ones are never dropped to make room."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._kept = OwnedObjects[StoredResponse](max_bytes, lambda stored: stored.answer is None)

    def __len__(self) -> int:
        return len(self._kept)

    def begin(
        self,
        answer: LiveResponse,
        owner: str,
        *,
        is_background: bool,
        items: Sequence[dict[str, Any]] = (),
        events: EventLog | None = None,
    ) -> StoredResponse:
        """Store a response that is about to run, with its input. Mutates: self"""
        stored = StoredResponse(
            owner=owner,
            since_s=self._clock(),
            is_background=is_background,
            events=events,
            answer=answer,
            items=json.dumps(list(items)).encode(),
        )
        self._kept.keep(answer.id, stored)
        return stored

    def settle(self, answer: LiveResponse, messages: Sequence[dict[str, Any]]) -> None:
        """Store the final state of a finished response, unless it was deleted in the meantime.

        Mutates: self
        """
        stored = self._kept.find(answer.id)
        if stored is None or stored.answer is None:
            return
        stored.reply = stored.reply_json()
        stored.messages = json.dumps(messages, ensure_ascii=False).encode()
        stored.answer = stored.task = None
        self._kept.keep(answer.id, stored)

    def get(self, response_id: str, owner: str) -> StoredResponse:
        """Return a response. Raises: NotFound, also for a response of another key"""
        self._drop_old()
        stored = self._kept.get(response_id, owner)
        if stored is None:
            raise NotFound(
                f'there is no response "{response_id[:128]}".',
                where="response_id",
                fix="responses are kept for an hour, unless sent with store false.",
                code="response_not_found",
            )
        return stored

    def find_item(self, item_id: str, owner: str) -> dict[str, Any] | None:
        """Return an item from the output or input of the owner's ended responses, newest first."""
        self._drop_old()
        mark = json.dumps(item_id).encode()
        for stored in reversed(self._kept.of(owner)):
            if stored.answer is not None:
                continue
            if mark not in stored.reply and mark not in stored.items:
                continue
            for item in (*json_value(stored.reply)["output"], *json_value(stored.items)):
                if item.get("id") == item_id:
                    return dict(item)
        return None

    def _drop_old(self) -> None:
        oldest_s = self._clock() - self._kept_s
        self._kept.drop_oldest(lambda stored: stored.since_s < oldest_s)

    def drop(self, response_id: str) -> None:
        """Delete a response. Mutates: self"""
        self._kept.drop(response_id)
