"""Conversations: items that responses continue and append to, in the memory of one process.

They are limited in bytes (`owned`) and belong to the key that created them. Source: the OpenAI API
reference, conversations.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from dovetail.errors import NotFound, RequestError
from dovetail.server.endpoint import App, Body, Metadata, in_words_of
from dovetail_plugins.apis.responses.input_items import as_items
from dovetail_plugins.apis.responses.owned import OwnedObjects
from dovetail_plugins.apis.responses.protocol import Item
from dovetail_plugins.apis.responses.turns import messages_of

MAX_BYTES = 64 << 20
MAX_NEW_ITEMS = 20
"""How many items one request may add, as in OpenAI's API."""

Items = Annotated[list[Item], Field(max_length=MAX_NEW_ITEMS)]


class NewConversation(Body):
    """A request to create a conversation."""

    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Body):
    """A request to replace a conversation's metadata."""

    metadata: Metadata


class NewItems(Body):
    """A request to add items to a conversation."""

    items: Items


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation; `owner` identifies its key."""

    id: str
    owner: str
    created_s: int
    metadata: dict[str, str]
    items: list[Item] = field(default_factory=list)
    num_item_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Return its memory size in bytes."""
        return self.num_item_bytes + len(json.dumps(self.metadata))

    def to_json(self) -> dict[str, Any]:
        """Return the conversation in the API's format."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_s,
            "metadata": self.metadata,
        }


class ConversationStore:
    """Conversations by id."""

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._kept = OwnedObjects[Conversation](max_bytes)

    def begin(self, owner: str, metadata: dict[str, str]) -> Conversation:
        """Return a new conversation. Mutates: self"""
        conversation = Conversation(
            id=f"conv_{secrets.token_hex(24)}",
            owner=owner,
            created_s=int(self._clock()),
            metadata=metadata,
        )
        self._kept.keep(conversation.id, conversation)
        return conversation

    def get(self, conversation_id: str, owner: str, where: str = "conversation") -> Conversation:
        """Return a conversation and mark it as used last. Raises: NotFound. Mutates: self"""
        conversation = self._kept.get(conversation_id, owner)
        if conversation is None:
            raise NotFound(
                f'there is no conversation "{conversation_id[:128]}".',
                where=where,
                fix="conversations are kept in memory until the server ends or needs the room.",
                code="conversation_not_found",
            )
        self._kept.touch(conversation.id)
        return conversation

    def add(self, conversation: Conversation, items: Sequence[Item]) -> None:
        """Add items, unless the conversation was deleted meanwhile. Mutates: self, conversation"""
        if self._kept.has(conversation.id, conversation):
            conversation.items += items
            conversation.num_item_bytes += _num_bytes(items)
            self._kept.keep(conversation.id, conversation)

    def remove(self, conversation: Conversation, item: Item) -> None:
        """Remove an item from a conversation. Mutates: self, conversation"""
        conversation.items.remove(item)
        conversation.num_item_bytes -= _num_bytes([item])
        self._kept.keep(conversation.id, conversation)

    def describe(self, conversation: Conversation, metadata: dict[str, str]) -> None:
        """Replace a conversation's metadata. Mutates: self, conversation"""
        conversation.metadata = metadata
        self._kept.keep(conversation.id, conversation)

    def find_item(self, item_id: str, owner: str) -> Item | None:
        """Return an item of the owner's conversations."""
        items = (item for one in self._kept.of(owner) for item in one.items)
        return next((item for item in items if item.get("id") == item_id), None)

    def drop(self, conversation_id: str) -> None:
        """Delete a conversation. Mutates: self"""
        self._kept.drop(conversation_id)


def _num_bytes(items: Sequence[Item]) -> int:
    return sum(len(json.dumps(item)) for item in items)


def check_keeps(server: App, where: str) -> None:
    """Raise RequestError if several processes would each store their own."""
    if server.frontend.api_server_count > 1:
        raise RequestError(
            "needs responses to be kept, which several HTTP processes do not share.",
            where=where,
            fix="start the server with --api-server-count 1, or send the whole input.",
            code="unsupported_field",
        )


def checked_items(given: Sequence[Item] | None) -> list[Item]:
    """Return items with their ids. Raises: RequestError for items that no response could
    continue"""
    with in_words_of({"input": "items"}):
        messages_of(list(given or ()))
    return as_items(list(given or ()))
