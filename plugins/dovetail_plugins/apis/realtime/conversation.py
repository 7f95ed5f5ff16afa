"""Conversation: the items of a session that answers, and the chat request that they are.

Sound is stored as samples, and given to the model as a WAV file.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from dovetail.errors import NotFound, RequestError
from dovetail.server.endpoint import ChatRequest
from dovetail_plugins.apis.realtime.items import Item, Part
from dovetail_plugins.apis.realtime.sound import wav_of
from dovetail_plugins.apis.realtime.words import Fields

MAX_ITEMS = 2048
FIRST = "root"
"""The `previous_item_id` of an item that becomes the first."""


class Conversation:
    """Items in their order, at most `max_bytes` of them. `last_id` is the last one's; `num_added`
    counts those that have been removed, too."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: list[Item] = []
        self.num_added = 0
        self.last_id: str | None = None

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Insert an item after another (None: at the end); return what is before it.

        Raises: RequestError for an id that is there, NotFound for one that is not. Mutates: self
        """
        if any(one.id == item.id for one in self._items):
            raise RequestError("is the id of another item.", where="item.id", code="item_exists")
        self.check_room(item.num_bytes)
        place = len(self._items)
        if after is not None:
            place = 0 if after == FIRST else self._place(after, "previous_item_id") + 1
        self._items.insert(place, item)
        self.num_added += 1
        before = self._items[place - 1].id if place else None
        self.last_id = self._items[-1].id
        return before

    def check_room(self, num_bytes: int) -> None:
        """Raise RequestError if so much more would be too much."""
        is_full = sum(one.num_bytes for one in self._items) + num_bytes > self._max_bytes
        if is_full or len(self._items) >= MAX_ITEMS:
            raise RequestError(
                f"a conversation has at most {MAX_ITEMS} items and {self._max_bytes} bytes.",
                fix="delete items with conversation.item.delete, or open another session.",
                code="conversation_full",
            )

    def delete(self, item_id: str) -> None:
        """Remove an item. Raises: NotFound. Mutates: self"""
        del self._items[self._place(item_id, "item_id")]
        self.last_id = self._items[-1].id if self._items else None

    def _place(self, item_id: str, where: str) -> int:
        for place, item in enumerate(self._items):
            if item.id == item_id:
                return place
        what = f'there is no item "{item_id[:64]}".'
        raise NotFound(what, where=where, code="item_not_found")

    def request(
        self, instructions: str, others: Sequence[Item] | None = None, **fields: Any
    ) -> ChatRequest:
        """Return the request for an answer; `others` take the place of all items. Raises:
        RequestError for no items"""
        items = self._items if others is None else others
        messages = [_message(item) for item in items if item.content]
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        if not messages:
            raise RequestError(
                "there is nothing to answer.",
                fix="add an item, or give instructions.",
                code="conversation_empty",
            )
        return ChatRequest.model_validate({"messages": messages, "stream": True, **fields})


def _message(item: Item) -> Fields:
    """Return an item as a message of a chat."""
    if item.role == "assistant":
        return {"role": item.role, "content": "".join(part.text or "" for part in item.content)}
    return {"role": item.role, "content": [_part(part, item.rate_hz) for part in item.content]}


def _part(part: Part, rate_hz: int) -> Fields:
    if part.audio is not None:
        data = base64.b64encode(wav_of(part.audio, rate_hz)).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    if part.image_url is not None:
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    return {"type": "text", "text": part.text or part.transcript or ""}
