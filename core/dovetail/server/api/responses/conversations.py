"""Conversations: items that responses go on from and add to, in the memory of one process.

Bounded in bytes; the one that was used longest ago goes first. What is kept belongs to the key that
made it. Source: the OpenAI API reference, conversations.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from dovetail.errors import NotFound, RequestError
from dovetail.server.api.responses.input_items import as_items
from dovetail.server.api.responses.protocol import MAX_METADATA, Item
from dovetail.server.api.responses.turns import messages_of
from dovetail.server.generate.as_chat import in_words_of
from dovetail.server.generate.bodies import Body
from dovetail.server.generate.server_state import ServerState
from dovetail.server.http.middleware import key_of

MAX_BYTES = 64 << 20
MAX_NEW_ITEMS = 20
"""Items that one request may add, as OpenAI has it."""

Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA)]
Items = Annotated[list[Item], Field(max_length=MAX_NEW_ITEMS)]


class NewConversation(Body):
    """A conversation is to be begun."""

    items: Items | None = None
    metadata: Metadata | None = None


class ChangedConversation(Body):
    """A conversation's metadata are to be others."""

    metadata: Metadata


class NewItems(Body):
    """Items are to be added to a conversation."""

    items: Items


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation; `owner` tells one key's from another's."""

    id: str
    owner: bytes
    created_s: int
    metadata: dict[str, str]
    items: list[Item] = field(default_factory=list)
    num_bytes: int = 0

    def told(self) -> dict[str, Any]:
        """Return the conversation as the API shows it."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_s,
            "metadata": self.metadata,
        }


class ConversationStore:
    """Conversations by id, the one used longest ago first."""

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[str, Conversation] = OrderedDict()

    def begin(self, owner: bytes, metadata: dict[str, str]) -> Conversation:
        """Return a new conversation. Mutates: self"""
        conversation = Conversation(
            id=f"conv_{secrets.token_hex(24)}",
            owner=owner,
            created_s=int(self._clock()),
            metadata=metadata,
        )
        self._kept[conversation.id] = conversation
        return conversation

    def get(self, conversation_id: str, owner: bytes, where: str = "conversation") -> Conversation:
        """Return a conversation, from now the one used last. Raises: NotFound. Mutates: self"""
        kept = self._kept.get(conversation_id)
        if kept is None or kept.owner != owner:
            raise NotFound(
                f'there is no conversation "{conversation_id[:128]}".',
                where=where,
                fix="conversations are kept in memory until the server ends or needs the room.",
                code="conversation_not_found",
            )
        self._kept.move_to_end(kept.id)
        return kept

    def add(self, conversation: Conversation, items: Sequence[Item]) -> None:
        """Add items; one that was deleted meanwhile stays deleted. Mutates: self, conversation"""
        if self._kept.get(conversation.id) is not conversation:
            return
        conversation.items += items
        conversation.num_bytes += len(json.dumps(list(items)))
        while sum(one.num_bytes for one in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)

    def find_item(self, item_id: str, owner: bytes) -> Item | None:
        """Return an item of the owner's conversations."""
        items = (item for one in self._kept.values() if one.owner == owner for item in one.items)
        return next((item for item in items if item.get("id") == item_id), None)

    def drop(self, conversation_id: str) -> None:
        """Forget a conversation. Mutates: self"""
        self._kept.pop(conversation_id, None)


def owner_of(request: Request) -> bytes:
    """Return the mark of a key, which tells its objects from another's."""
    return hashlib.sha256(key_of(request.headers).encode("utf-8", "surrogateescape")).digest()


def check_keeps(server: ServerState, where: str) -> None:
    """Raise RequestError where several processes would each keep their own."""
    if server.frontend.api_server_count > 1:
        raise RequestError(
            "needs responses to be kept, which several HTTP processes do not share.",
            where=where,
            fix="start the server with --api-server-count 1, or send the whole input.",
            code="unsupported_field",
        )


def checked_items(given: Sequence[Item] | None) -> list[Item]:
    """Return items with their ids. Raises: RequestError for what no response could go on from"""
    with in_words_of({"input": "items"}):
        messages_of(list(given or ()))
    return as_items(list(given or ()))
