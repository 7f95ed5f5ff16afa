"""/v1/conversations: create, read, change and delete conversations and their items.

Source: the OpenAI API reference, conversations.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse

from dovetail.errors import NotFound
from dovetail.interfaces.api import Route
from dovetail.server.endpoint import ServerOf, owner_of
from dovetail_plugins.apis.responses.conversations import (
    ChangedConversation,
    Conversation,
    NewConversation,
    NewItems,
    check_keeps,
    checked_items,
)
from dovetail_plugins.apis.responses.input_items import page_of
from dovetail_plugins.apis.responses.protocol import Item
from dovetail_plugins.apis.responses.state import ResponsesStateOf


async def create_conversation(
    body: NewConversation, request: Request, server: ServerOf, state: ResponsesStateOf
) -> Any:
    """Create a conversation, with or without items."""
    check_keeps(server, "conversation")
    server.fields.check(body, is_answered=False)
    items = checked_items(body.items)
    conversation = state.conversations.begin(owner_of(request), body.metadata or {})
    state.conversations.add(conversation, items)
    return JSONResponse(conversation.to_json())


async def get_conversation(conversation_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Return a conversation, without its items."""
    return JSONResponse(_conversation(conversation_id, request, state).to_json())


async def update_conversation(
    conversation_id: str, body: ChangedConversation, request: Request, state: ResponsesStateOf
) -> Any:
    """Replace the metadata of a conversation."""
    conversation = _conversation(conversation_id, request, state)
    state.conversations.describe(conversation, body.metadata)
    return JSONResponse(conversation.to_json())


async def delete_conversation(
    conversation_id: str, request: Request, state: ResponsesStateOf
) -> Any:
    """Delete a conversation and its items."""
    conversation = _conversation(conversation_id, request, state)
    state.conversations.drop(conversation.id)
    return JSONResponse({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


async def list_items(conversation_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Return the items of a conversation, a page at a time."""
    conversation = _conversation(conversation_id, request, state)
    return JSONResponse(page_of(conversation.items, request.query_params))


async def add_items(
    conversation_id: str, body: NewItems, request: Request, state: ResponsesStateOf
) -> Any:
    """Add items to a conversation."""
    conversation = _conversation(conversation_id, request, state)
    items = checked_items(body.items)
    state.conversations.add(conversation, items)
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return JSONResponse({"object": "list", "data": items, "has_more": False, **ends})


async def get_item(
    conversation_id: str, item_id: str, request: Request, state: ResponsesStateOf
) -> Any:
    """Return one item of a conversation."""
    return JSONResponse(_item(_conversation(conversation_id, request, state), item_id))


async def delete_item(
    conversation_id: str, item_id: str, request: Request, state: ResponsesStateOf
) -> Any:
    """Delete one item of a conversation."""
    conversation = _conversation(conversation_id, request, state)
    state.conversations.remove(conversation, _item(conversation, item_id))
    return JSONResponse(conversation.to_json())


def _conversation(conversation_id: str, request: Request, state: ResponsesStateOf) -> Conversation:
    return state.conversations.get(conversation_id, owner_of(request), "conversation_id")


def _item(conversation: Conversation, item_id: str) -> Item:
    """Return an item. Raises: NotFound"""
    for item in conversation.items:
        if item["id"] == item_id:
            return item
    raise NotFound(f'there is no item "{item_id[:128]}".', where="item_id", code="item_not_found")


_ONE = "/v1/conversations/{conversation_id}"
CONVERSATION_ROUTES = (
    Route(
        method="POST",
        path="/v1/conversations",
        endpoint=create_conversation,
        body=NewConversation,
    ),
    Route(method="GET", path=_ONE, endpoint=get_conversation),
    Route(method="POST", path=_ONE, endpoint=update_conversation, body=ChangedConversation),
    Route(method="DELETE", path=_ONE, endpoint=delete_conversation),
    Route(method="GET", path=f"{_ONE}/items", endpoint=list_items),
    Route(method="POST", path=f"{_ONE}/items", endpoint=add_items, body=NewItems),
    Route(method="GET", path=f"{_ONE}/items/{{item_id}}", endpoint=get_item),
    Route(method="DELETE", path=f"{_ONE}/items/{{item_id}}", endpoint=delete_item),
)
