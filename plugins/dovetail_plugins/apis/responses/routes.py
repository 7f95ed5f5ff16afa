"""/v1/responses: OpenAI's Responses dialect, and its stored responses.

POST answers, streamed, whole or in the background. The other routes read, cancel and delete stored
responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import HTTPException, Request
from starlette.responses import Response

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import RequestError
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value
from dovetail.server.endpoint import (
    App,
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
    problem_of,
)
from dovetail_plugins.apis.responses.compact import (
    compact_response,
    compacted_news,
    has_turns_to_replace,
    summary_plan,
)
from dovetail_plugins.apis.responses.conversation_routes import CONVERSATION_ROUTES
from dovetail_plugins.apis.responses.conversations import Conversation
from dovetail_plugins.apis.responses.event_log import EventLog
from dovetail_plugins.apis.responses.input import (
    NAMES,
    chat_of,
    compact_threshold,
    is_compaction,
    tells_logprobs,
)
from dovetail_plugins.apis.responses.input_items import as_items, page_of
from dovetail_plugins.apis.responses.logprobs import TextLogprobs
from dovetail_plugins.apis.responses.plan import ResponsePlan, plan_of, prepared
from dovetail_plugins.apis.responses.protocol import (
    CompactRequest,
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
from dovetail_plugins.apis.responses.tool_turns import ToolTurns
from dovetail_plugins.apis.responses.turns import messages_of
from dovetail_plugins.usage import shows_cached

Message = dict[str, Any]
MAX_DIGITS = 18


async def create_response(
    body: ResponsesRequest, request: Request, server: ServerOf, state: ResponsesStateOf
) -> Any:
    """Answer input items, streamed, whole or in the background."""
    unknown = server.fields.check(body)
    with in_words_of(NAMES):
        plan = plan_of(server, state, body, request, unknown)
    body = plan.body
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation, is_summary = await _begun(server, plan, request)
        meta = generation.meta
        answer = GrowingResponse(
            body,
            model=meta.model,
            params=generation.params,
            is_stored=plan.is_stored,
            shows_cached=shows_cached(server, body),
            lists=plan.offer.lists,
            logprobs=_text_logprobs(body, generation),
            shows_timings=server.frontend.enable_per_request_metrics,
        )

        def news_of(given: ResponsePlan, begun: Generation) -> AsyncGenerator[News, None]:
            return _news(server, given, begun, answer, request)

        if is_summary:
            then = None if is_compaction(body) else news_of
            steps = compacted_news(server, plan, generation, request, then)
        else:
            steps = news_of(plan, generation)
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


async def refuse_websocket(request: Request) -> Any:
    """Refuse a WebSocket, with the status at which clients continue over HTTP at once."""
    if request.headers.get("upgrade", "").lower() != "websocket":
        raise HTTPException(405, headers={"Allow": "POST"})
    raise HTTPException(426, f"{request.url.path} takes no WebSocket; send requests with POST.")


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
        plan = plan_of(server, state, body, request, unknown)
        with in_words_of(plan.names):
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


async def _begun(server: App, plan: ResponsePlan, request: Request) -> tuple[Generation, bool]:
    """Return the first generation of a response, and whether it is a summary of the conversation.

    Raises: RequestError
    """
    if not is_compaction(plan.body):
        generation = await prepared(server, plan, request)
        threshold = compact_threshold(plan.body)
        is_short = threshold is None or len(generation.prompt_ids) <= threshold
        if is_short or not has_turns_to_replace(plan):
            return generation, False
    return await prepared(server, summary_plan(plan), request), True


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
        return await prepared(server, changed, request)

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
        Route(method="GET", path="/v1/responses", endpoint=refuse_websocket),
        Route(
            method="POST",
            path="/v1/responses/input_tokens",
            endpoint=count_input_tokens,
            body=InputTokensRequest,
        ),
        Route(
            method="POST",
            path="/v1/responses/compact",
            endpoint=compact_response,
            body=CompactRequest,
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
