"""ResponsePlan: what a request for a response asks, checked, and ready to be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from dovetail.errors import NotFound, RequestError
from dovetail.json_values import json_value
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    Generation,
    in_words_of,
    owner_of,
    prepare,
)
from dovetail_plugins.apis.responses.conversations import Conversation, check_keeps
from dovetail_plugins.apis.responses.input import (
    chat_of,
    conversation_id,
    ignored_fields,
    without_oldest,
)
from dovetail_plugins.apis.responses.input_items import with_references
from dovetail_plugins.apis.responses.offered_tools import left_out_tools
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from dovetail_plugins.apis.responses.response import RESPONSES
from dovetail_plugins.apis.responses.state import ResponsesState
from dovetail_plugins.apis.responses.tool_turns import Offer, offer_of
from dovetail_plugins.apis.responses.turns import messages_of, placed_messages_of

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePlan:
    """A validated request: its turns without instructions, its chat request, the client's names of
    the fields there, its ignored fields, and the tools that the server calls."""

    body: ResponsesRequest
    offer: Offer
    chat: ChatRequest
    messages: Sequence[Message]
    names: Mapping[str, str]
    ignored: Sequence[str]
    owner: str
    conversation: Conversation | None
    is_stored: bool
    drops_turns: bool


def plan_of(
    server: App,
    state: ResponsesState,
    body: ResponsesRequest,
    request: Request,
    unknown: Sequence[str],
) -> ResponsePlan:
    """Return the plan of a request; `unknown` fields have no effect. Raises: RequestError"""
    owner = owner_of(request)
    body = _with_referred(body, state, owner)
    offer = offer_of(body, state.tool_servers)
    ignored = [*unknown, *ignored_fields(body)]
    ignored += server.fields.report([*offer.ignored, *left_out_tools(body, offer.served())])
    is_stored = _is_stored(server, body)
    earlier: list[Message] = []
    conversation: Conversation | None = None
    if body.conversation is not None:
        if body.previous_response_id is not None:
            raise RequestError(
                "cannot be combined with conversation.", where="previous_response_id"
            )
        conversation = state.conversations.get(conversation_id(body), owner)
        earlier = messages_of(conversation.items)
    elif body.previous_response_id is not None:
        earlier = _earlier(state, body.previous_response_id, owner)
    messages, places = placed_messages_of(body.input, earlier)
    if not messages:
        raise RequestError("holds no turn.", where="input")
    num_before = 1 if body.instructions else 0
    names = {f"messages[{n + num_before}].content": where for n, where in places.items()}
    with in_words_of(names):
        chat = chat_of(body, messages, offer.functions(), offer.labels())
    return ResponsePlan(
        body=body,
        offer=offer,
        chat=chat,
        messages=messages,
        names=names,
        ignored=ignored,
        owner=owner,
        conversation=conversation,
        is_stored=is_stored,
        drops_turns=body.truncation == "auto",
    )


def _with_referred(body: ResponsesRequest, state: ResponsesState, owner: str) -> ResponsesRequest:
    """Return the request with references replaced by items. Raises: NotFound"""

    def find(item_id: str) -> dict[str, Any] | None:
        found = state.stored.find_item(item_id, owner)
        return found or state.conversations.find_item(item_id, owner)

    return body.model_copy(update={"input": with_references(body.input, find)})


def _is_stored(server: App, body: ResponsesRequest) -> bool:
    """Return whether the response is stored. Raises: RequestError if it must be stored but cannot
    be"""
    can_store = server.frontend.api_server_count == 1
    for name in ("background", "previous_response_id", "conversation"):
        if getattr(body, name):
            check_keeps(server, name)
    if body.background and body.store is False:
        raise RequestError("needs store to be true.", where="background")
    return can_store and body.store is not False


def _earlier(state: ResponsesState, response_id: str, owner: str) -> list[Message]:
    """Return the turns up to and including an earlier response. Raises: RequestError"""
    try:
        stored = state.stored.get(response_id, owner)
    except NotFound as error:
        raise RequestError(
            error.what,
            where="previous_response_id",
            fix=error.fix,
            code="previous_response_not_found",
        ) from error
    if stored.answer is not None:
        raise RequestError("that response has not ended yet.", where="previous_response_id")
    found: list[Message] = json_value(stored.messages)
    return found


async def prepared(server: App, plan: ResponsePlan, request: Request) -> Generation:
    """Return the request ready for the engine; with truncation, without turns that do not fit.

    Raises: RequestError
    """
    chat, num_dropped = plan.chat, 1
    dialect = replace(RESPONSES, field_names={**RESPONSES.field_names, **plan.names})
    while True:
        try:
            return await prepare(server, chat, request, dialect=dialect, ignored=plan.ignored)
        except RequestError as error:
            shorter = without_oldest(plan.chat, num_dropped) if plan.drops_turns else None
            if error.code != "context_length_exceeded" or shorter is None:
                raise
            chat, num_dropped, dialect = shorter, 2 * num_dropped, RESPONSES
