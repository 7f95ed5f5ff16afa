"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import Request

from dovetail.interfaces.api import GENERATE, Api, ApiError, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    Generation,
    ServerOf,
    count_prompt_tokens,
    event_stream_response,
    in_words_of,
    json_reply,
    json_response,
    prepare,
)
from dovetail_plugins.apis.messages.errors import error_body
from dovetail_plugins.apis.messages.input import (
    NAMES,
    chat_of,
    ignored_fields,
    left_out_tools,
    switches,
)
from dovetail_plugins.apis.messages.protocol import CountReply, CountRequest, MessagesRequest
from dovetail_plugins.apis.messages.response import (
    MESSAGES,
    Message,
    MessageResponseOptions,
    framing,
    message_body,
    message_frames,
)
from dovetail_plugins.usage import shows_cached

UNCOUNTED = ("max_tokens", "stop_sequences")
"""Fields of a message that do not affect the number of prompt tokens."""


async def create_message(body: MessagesRequest, request: Request, server: ServerOf) -> Any:
    """Answer a conversation in Anthropic's format, streamed or whole."""
    chat, ignored = _translated(server, body)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation = await prepare(
            server, chat, request, dialect=MESSAGES, ignored=ignored, others=switches(body)
        )
        meta = generation.meta
        steps = generation.steps(server)
        owned.push_async_callback(steps.aclose)
        message = Message(meta, _response_options(server, body, generation))
        if body.stream:
            run = partial(message_frames, message=message)
            frames = framing(meta.request_id)
            return await event_stream_response(request, owned, meta, steps, run, frames)
        return await json_response(meta, message_body(steps, message))


async def count_tokens(body: CountRequest, server: ServerOf) -> Any:
    """Return the number of prompt tokens of a message."""
    chat, ignored = _translated(server, body)
    with in_words_of(MESSAGES.field_names):
        num_tokens, unused = await count_prompt_tokens(server, chat, switches(body))
        ignored += server.fields.report(unused)
    return json_reply(CountReply(input_tokens=num_tokens), ignored)


def _translated(server: App, body: CountRequest) -> tuple[ChatRequest, list[str]]:
    """Return the body as a chat request, and the names of fields without effect."""
    budgets = (
        server.text.parsers.reasoning is not None and server.engine.constraint_compiler is not None
    )
    ignored = server.fields.check(body, known=UNCOUNTED)
    ignored += server.fields.report(left_out_tools(body))
    with in_words_of(NAMES):
        chat = chat_of(body, can_budget=budgets)
    return chat, [*ignored, *ignored_fields(body, can_budget=budgets)]


def _response_options(
    server: App, body: MessagesRequest, generation: Generation
) -> MessageResponseOptions:
    return MessageResponseOptions(
        shows_cached=shows_cached(server, body),
        counts_reasoning=generation.plan.can_reason,
    )


class MessagesApi(Api):
    """Anthropic's Messages."""

    info = Info(summary="messages of the Anthropic API", source="the Anthropic API reference")
    routes = (
        Route(method="POST", path="/v1/messages", endpoint=create_message, body=MessagesRequest),
        Route(
            method="POST",
            path="/v1/messages/count_tokens",
            endpoint=count_tokens,
            body=CountRequest,
            takes_any_length=True,
        ),
    )
    task = GENERATE

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return Anthropic's JSON error body."""
        return error_body(status, error, request_id)
