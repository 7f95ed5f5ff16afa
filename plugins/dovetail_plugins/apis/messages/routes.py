"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.api import GENERATE, Api, ApiError, Route
from dovetail.interfaces.data.media_settings import IMAGE
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
    state_of,
)
from dovetail_plugins.apis.messages.billing import (
    BILLING_NAME,
    has_billing_line,
    without_billing_line,
)
from dovetail_plugins.apis.messages.errors import error_body
from dovetail_plugins.apis.messages.input import (
    NAMES,
    chat_of,
    ignored_fields,
    switches,
)
from dovetail_plugins.apis.messages.pinned import Pinned, with_pin
from dovetail_plugins.apis.messages.protocol import CountReply, CountRequest, MessagesRequest
from dovetail_plugins.apis.messages.response import (
    MESSAGES,
    Message,
    MessageResponseOptions,
    framing,
    message_body,
    message_frames,
)
from dovetail_plugins.apis.messages.system_turns import with_readable_turns
from dovetail_plugins.apis.messages.tools import left_out_tools
from dovetail_plugins.apis.messages.turns import in_places_of
from dovetail_plugins.usage import shows_cached

REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for the id of a request."""
UNCOUNTED = ("max_tokens", "stop_sequences")
"""Fields of a message that do not affect the number of prompt tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesState:
    """The family's settings."""

    keeps_billing_line: bool = False


StateOf = Annotated[MessagesState, Depends(state_of(MessagesState))]


async def create_message(
    body: MessagesRequest, request: Request, server: ServerOf, state: StateOf
) -> Any:
    """Answer a conversation in Anthropic's format, streamed or whole."""
    to_chat, ignored = _to_chat(server), _ignored(server, body, state)

    async def prepared(body: CountRequest) -> tuple[Generation, Pinned | None]:
        with in_words_of(NAMES):
            chat = to_chat(body)
        with in_places_of(body):
            generation = await prepare(
                server, chat, request, dialect=MESSAGES, ignored=ignored, others=switches(body)
            )
        return await with_pin(server, body, to_chat, generation)

    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation, pinned = await with_readable_turns(body, prepared)
        meta = generation.meta
        steps = generation.steps(server)
        owned.push_async_callback(steps.aclose)
        message = Message(meta, _response_options(server, body, generation, pinned))
        if body.stream:
            run = partial(message_frames, message=message)
            frames = framing(meta.request_id)
            answer: Response = await event_stream_response(request, owned, meta, steps, run, frames)
        else:
            answer = await json_response(meta, message_body(steps, message))
        answer.headers[REQUEST_ID] = meta.request_id
        return answer


async def count_tokens(body: CountRequest, server: ServerOf, state: StateOf) -> Any:
    """Return the number of prompt tokens of a message."""
    to_chat, ignored = _to_chat(server), _ignored(server, body, state)

    async def counted(body: CountRequest) -> tuple[int, Sequence[str]]:
        with in_words_of(MESSAGES.field_names):
            chat = to_chat(body)
            with in_places_of(body):
                return await count_prompt_tokens(server, chat, switches(body))

    num_tokens, unused = await with_readable_turns(body, counted)
    ignored += server.fields.report(unused)
    return json_reply(CountReply(input_tokens=num_tokens), ignored)


def _ignored(server: App, body: CountRequest, state: MessagesState) -> list[str]:
    """Return the names of fields without effect, and leave a billing line out. Mutates: body"""
    ignored = server.fields.check(body, known=UNCOUNTED)
    ignored += server.fields.report(left_out_tools(body))
    if has_billing_line(body.system) and not state.keeps_billing_line:
        body.system = without_billing_line(body.system)
        ignored.append(BILLING_NAME)
    return ignored + ignored_fields(
        body,
        can_budget=_can_budget(server),
        can_pin=server.engine.spec.cache.uses_prefix_cache,
        sees_images=_sees_images(server),
    )


def _to_chat(server: App) -> Callable[[CountRequest], ChatRequest]:
    return partial(chat_of, can_budget=_can_budget(server), sees_images=_sees_images(server))


def _can_budget(server: App) -> bool:
    has_reasoning = server.text.parsers.reasoning is not None
    return has_reasoning and server.engine.constraint_compiler is not None


def _sees_images(server: App) -> bool:
    media = server.engine.spec.media
    return media is not None and IMAGE in media.kinds


def _response_options(
    server: App, body: MessagesRequest, generation: Generation, pinned: Pinned | None
) -> MessageResponseOptions:
    return MessageResponseOptions(
        shows_reasoning=body.thinking is None or body.thinking.display != "omitted",
        shows_cached=shows_cached(server, body),
        counts_reasoning=generation.plan.can_reason,
        pinned=pinned,
        block_tokens=server.engine.spec.cache.block_tokens,
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

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """How the client's text is turned into a prompt."""

        keep_billing_line: bool = field(
            default=False,
            metadata={
                "help": "show the model the line x-anthropic-billing-header that Claude Code sends "
                "first; it differs in every request, so no prefix after it is reused"
            },
        )

    @asynccontextmanager
    async def state(self, frontend: FrontendConfig) -> AsyncIterator[MessagesState]:
        """Yield the settings."""
        yield MessagesState(keeps_billing_line=self.options.keep_billing_line)

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return Anthropic's JSON error body."""
        return error_body(status, error, request_id)
