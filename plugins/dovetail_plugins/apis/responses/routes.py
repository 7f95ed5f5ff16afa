"""/v1/responses: OpenAI's Responses dialect, and its stored responses.

POST answers, streamed, whole or in the background. The other routes read, cancel and delete stored
responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import NotFound, RequestError
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    EventStream,
    Framing,
    Generation,
    ServerOf,
    StreamHead,
    count_prompt_tokens,
    event_frame,
    event_stream_response,
    in_words_of,
    json_reply,
    json_response,
    owner_of,
    prepare,
    problem_of,
)
from dovetail_plugins.apis.responses.conversation_routes import CONVERSATION_ROUTES
from dovetail_plugins.apis.responses.conversations import Conversation, check_keeps
from dovetail_plugins.apis.responses.event_log import EventLog
from dovetail_plugins.apis.responses.input import (
    NAMES,
    chat_of,
    conversation_id,
    ignored_fields,
    tells_logprobs,
    without_oldest,
)
from dovetail_plugins.apis.responses.input_items import as_items, page_of, with_references
from dovetail_plugins.apis.responses.logprobs import TextLogprobs
from dovetail_plugins.apis.responses.offered_tools import left_out_tools
from dovetail_plugins.apis.responses.protocol import (
    DeletedReply,
    InputTokensReply,
    InputTokensRequest,
    ResponsesRequest,
)
from dovetail_plugins.apis.responses.response import (
    RESPONSES,
    GrowingResponse,
    News,
    framing,
    response_body,
    response_frames,
)
from dovetail_plugins.apis.responses.state import ResponsesState, ResponsesStateOf, opened_state
from dovetail_plugins.apis.responses.tool_turns import Offer, ToolTurns, offer_of
from dovetail_plugins.apis.responses.turns import messages_of

Message = dict[str, Any]
MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePlan:
    """A validated request: its turns without instructions, its chat request, its ignored fields,
    and the tools that the server calls."""

    body: ResponsesRequest
    offer: Offer
    chat: ChatRequest
    messages: Sequence[Message]
    ignored: Sequence[str]
    owner: str
    conversation: Conversation | None
    is_stored: bool
    drops_turns: bool


async def create_response(
    body: ResponsesRequest, request: Request, server: ServerOf, state: ResponsesStateOf
) -> Any:
    """Answer input items, streamed, whole or in the background."""
    unknown = server.fields.check(body)
    with in_words_of(NAMES):
        plan = _plan(server, state, body, request, unknown)
    body = plan.body
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation = await _prepare(server, plan, request)
        meta = generation.meta
        answer = GrowingResponse(
            body,
            model=meta.model,
            params=generation.params,
            is_stored=plan.is_stored,
            shows_cached=server.frontend.enable_prompt_tokens_details,
            lists=plan.offer.lists,
            logprobs=_text_logprobs(body, generation),
            shows_timings=server.frontend.enable_per_request_metrics,
        )
        steps = _news(server, plan, generation, answer, request)
        owned.push_async_callback(steps.aclose)
        if plan.conversation is not None:
            owned.callback(_add_to, plan.conversation, state, body, answer)
        if plan.is_stored:
            log = EventLog() if body.background and body.stream else None
            stored = state.stored.begin(
                answer,
                plan.owner,
                is_background=bool(body.background),
                items=as_items(body.input),
                events=log,
            )
            owned.callback(_settle, state, plan, answer)
            if body.background:
                reply = answer.encoded()
                stored.task = asyncio.create_task(_run(owned.pop_all(), answer, steps, log))
                headers = meta.headers()
                return _json(reply, headers) if log is None else _followed(log, request, headers)
        if body.stream:
            frames = framing(answer)

            def run(given: AsyncIterator[News]) -> AsyncGenerator[bytes, None]:
                return response_frames(given, answer)

            return await event_stream_response(request, owned, meta, steps, run, frames)
        return await json_response(meta, response_body(steps, answer))


async def get_response(response_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Return a stored response, complete or partial, or its stream after the event given by
    `starting_after` in the query."""
    stored = state.stored.get(response_id, owner_of(request))
    after = _starting_after(request.query_params.get("starting_after"))
    if request.query_params.get("stream", "").lower() not in ("true", "1"):
        return _json(stored.reply_json())
    if stored.events is None:
        raise RequestError(
            "only responses made with background and stream can be streamed again.",
            where="stream",
            fix="request it without stream.",
            code="unsupported_field",
        )
    return _followed(stored.events, request, {}, after)


async def delete_response(response_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Delete a stored response; cancel it first if it runs in the background."""
    stored = state.stored.get(response_id, owner_of(request))
    if stored.task is not None:
        stored.task.cancel()
    state.stored.drop(response_id)
    return _json(DeletedReply(id=response_id).model_dump_json().encode())


async def list_input_items(response_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Return the input items of a stored response, a page at a time."""
    stored = state.stored.get(response_id, owner_of(request))
    page = page_of(json_value(stored.items), request.query_params)
    return _json(json.dumps(page).encode())


async def count_input_tokens(
    body: InputTokensRequest, request: Request, server: ServerOf, state: ResponsesStateOf
) -> Any:
    """Return the number of prompt tokens of a response."""
    unknown = server.fields.check(body, is_answered=False)
    with in_words_of(RESPONSES.field_names):
        plan = _plan(server, state, body, request, unknown)
        num_tokens, _ = await count_prompt_tokens(server, plan.chat)
    return json_reply(InputTokensReply(input_tokens=num_tokens), plan.ignored)


async def cancel_response(response_id: str, request: Request, state: ResponsesStateOf) -> Any:
    """Cancel a response that runs in the background; one that has ended stays unchanged."""
    stored = state.stored.get(response_id, owner_of(request))
    if not stored.is_background:
        raise RequestError(
            "only responses made in the background can be cancelled.",
            where="response_id",
            fix="close the connection to end one that is not.",
        )
    if stored.task is not None:
        stored.task.cancel()
        await asyncio.gather(stored.task, return_exceptions=True)
    return _json(stored.reply_json())


def _text_logprobs(body: ResponsesRequest, generation: Generation) -> TextLogprobs | None:
    if not tells_logprobs(body):
        return None
    num_top = len(body.logprob_token_ids or ()) or body.top_logprobs or 0
    return TextLogprobs(num_top, generation.meta.names, is_named=bool(body.logprob_token_ids))


def _plan(
    server: App,
    state: ResponsesState,
    body: ResponsesRequest,
    request: Request,
    unknown: Sequence[str],
) -> ResponsePlan:
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
    messages = messages_of(body.input, earlier)
    if not messages:
        raise RequestError("holds no turn.", where="input")
    return ResponsePlan(
        body=body,
        offer=offer,
        chat=chat_of(body, messages, offer.functions(), offer.labels()),
        messages=messages,
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


async def _prepare(server: App, plan: ResponsePlan, request: Request) -> Generation:
    """Return the request ready for the engine; with truncation, without turns that do not fit.

    Raises: RequestError
    """
    chat, num_dropped = plan.chat, 1
    while True:
        try:
            return await prepare(
                server,
                chat,
                request,
                dialect=RESPONSES,
                ignored=plan.ignored,
            )
        except RequestError as error:
            shorter = without_oldest(plan.chat, num_dropped) if plan.drops_turns else None
            if error.code != "context_length_exceeded" or shorter is None:
                raise
            chat, num_dropped = shorter, 2 * num_dropped


def _news(
    server: App, plan: ResponsePlan, first: Generation, answer: GrowingResponse, request: Request
) -> AsyncGenerator[News, None]:
    """Return the steps of the answer: of one generation, or of several if servers' tools are
    called."""
    if not plan.offer.servers:
        return first.steps(server)

    async def follow(changes: dict[str, Any]) -> Generation:
        messages = messages_of(answer.output(), plan.messages)
        chat = chat_of(plan.body, messages, plan.offer.functions(), plan.offer.labels())
        changed = replace(plan, chat=chat.model_copy(update=changes))
        return await _prepare(server, changed, request)

    turns = ToolTurns(
        server=server,
        offer=plan.offer,
        answer=answer,
        follow=follow,
        max_tokens=plan.body.max_output_tokens,
        max_calls=plan.body.max_tool_calls,
    )
    return turns.run(first)


def _add_to(
    conversation: Conversation,
    state: ResponsesState,
    body: ResponsesRequest,
    answer: GrowingResponse,
) -> None:
    """Append the input and the answer to a conversation; a failure leaves it unchanged.

    Mutates: the store
    """
    if answer.status in ("completed", "incomplete"):
        state.conversations.add(conversation, [*as_items(body.input), *answer.output()])


def _settle(state: ResponsesState, plan: ResponsePlan, answer: GrowingResponse) -> None:
    """Store the final state of a response, however it ended. Mutates: the store"""
    if answer.is_running:
        answer.cancel()
    state.stored.settle(answer, messages_of(answer.output(), plan.messages))


def _starting_after(given: str | None) -> int:
    """Return the event number after which a stream starts; -1 for its beginning. Raises:
    RequestError"""
    if given is None or given == "":
        return -1
    if not given.isdecimal() or len(given) > MAX_DIGITS:
        raise RequestError("must be the sequence_number of an event.", where="starting_after")
    return int(given)


def _followed(
    log: EventLog, request: Request, headers: dict[str, str], after: int = -1
) -> EventStream:
    """Return the stream of a background response, which runs independently of readers."""
    head = StreamHead(
        headers=headers,
        request_id=request.state.request_id,
        keep_alive_s=request.app.state.server.frontend.sse_keep_alive_interval,
        framing=Framing(frame=bytes, end=b""),
    )
    return EventStream(log.after(after), AsyncExitStack(), head)


async def _run(
    owned: AsyncExitStack,
    answer: GrowingResponse,
    steps: AsyncGenerator[News, None],
    log: EventLog | None,
) -> None:
    """Generate a background response; `log` receives the events. Mutates: answer, log"""
    events = log or EventLog()
    with contextlib.closing(events):
        async with owned:
            try:
                async for frame in response_frames(steps, answer):
                    if log is not None:
                        log.add(frame)
            except Exception as error:
                events.add(event_frame(answer.fail(problem_of(error))))


def _json(data: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(data, media_type="application/json", headers=headers)


class ResponsesApi(Api):
    """OpenAI's Responses."""

    info = Info(summary="responses of the OpenAI API", source="the OpenAI API reference")
    routes = (
        Route(method="POST", path="/v1/responses", endpoint=create_response, body=ResponsesRequest),
        Route(
            method="POST",
            path="/v1/responses/input_tokens",
            endpoint=count_input_tokens,
            body=InputTokensRequest,
        ),
        Route(method="GET", path="/v1/responses/{response_id}", endpoint=get_response),
        Route(
            method="GET",
            path="/v1/responses/{response_id}/input_items",
            endpoint=list_input_items,
        ),
        Route(method="DELETE", path="/v1/responses/{response_id}", endpoint=delete_response),
        Route(method="POST", path="/v1/responses/{response_id}/cancel", endpoint=cancel_response),
        *CONVERSATION_ROUTES,
    )
    task = GENERATE

    def state(self, frontend: FrontendConfig) -> AbstractAsyncContextManager[ResponsesState]:
        """Return the store of responses and the tool servers."""
        return opened_state(frontend)
