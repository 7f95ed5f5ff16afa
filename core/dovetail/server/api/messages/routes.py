"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dovetail.server.api.messages.input import NAMES, chat_of, ignored_fields, switches
from dovetail.server.api.messages.protocol import CountReply, CountRequest, MessagesRequest
from dovetail.server.api.messages.response import (
    Message,
    MessageResponseOptions,
    framing,
    message_body,
    message_frames,
)
from dovetail.server.generate.as_chat import engine_names, in_words_of
from dovetail.server.generate.chat_body import ChatRequest
from dovetail.server.generate.conversation import Prepared, prepare, render
from dovetail.server.generate.dependencies import ServerOf
from dovetail.server.generate.generation import admit, event_stream_response, json_response
from dovetail.server.generate.ignored_fields import HEADER, header_value
from dovetail.server.generate.server_state import ServerState
from dovetail.server.generate.streaming import cancel_on_disconnect
from dovetail.server.generate.thinking import switches_of, unused_fields


async def create_message(body: MessagesRequest, request: Request, server: ServerOf) -> Any:
    """Answer a conversation in Anthropic's shapes, streamed or whole."""
    chat, ignored = _translated(server, body)
    async with AsyncExitStack() as owned:
        admit(server, owned, 1)
        prepared = await cancel_on_disconnect(
            request, _prepare(server, body, chat, request, ignored)
        )
        meta = prepared.meta
        steps = prepared.generation.steps(server)
        owned.push_async_callback(steps.aclose)
        message = Message(meta, _response_options(server, prepared))
        if body.stream:
            run = partial(message_frames, message=message)
            frames = framing(meta.request_id)
            return await event_stream_response(request, owned, meta, steps, run, frames)
        return await json_response(request, meta, message_body(steps, message))


async def count_tokens(body: CountRequest, server: ServerOf) -> Any:
    """Return how many tokens the prompt of a message has."""
    chat, ignored = _translated(server, body)
    with in_words_of(engine_names(NAMES)):
        server.model_name(chat.model)
        wishes = switches_of(chat, switches(body))
        prompt = await render(server, chat, wishes)
        unused = unused_fields(chat, wishes, prompt.rendered.ignored)
        ignored += server.fields.report(unused)
    headers = {HEADER: header_value(ignored)} if ignored else {}
    counted = CountReply(input_tokens=len(prompt.ids))
    return Response(counted.model_dump_json(), media_type="application/json", headers=headers)


def _translated(server: ServerState, body: CountRequest) -> tuple[ChatRequest, list[str]]:
    """Return the body in chat's words, and the names of what changes nothing."""
    budgets = server.parsers.reasoning is not None and server.engine.guides is not None
    ignored = server.fields.check(body)
    with in_words_of(NAMES):
        chat = chat_of(body, can_budget=budgets)
    return chat, [*ignored, *ignored_fields(body, can_budget=budgets)]


async def _prepare(
    server: ServerState,
    body: MessagesRequest,
    chat: ChatRequest,
    request: Request,
    ignored: list[str],
) -> Prepared:
    return await prepare(
        server,
        chat,
        request,
        dialect="messages",
        ignored=ignored,
        others=switches(body),
        names=engine_names(NAMES),
    )


def _response_options(server: ServerState, prepared: Prepared) -> MessageResponseOptions:
    return MessageResponseOptions(
        shows_cached=server.frontend.enable_prompt_tokens_details,
        counts_reasoning=prepared.generation.plan.reasoning is not None,
    )
