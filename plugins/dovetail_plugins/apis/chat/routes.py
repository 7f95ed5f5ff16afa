"""POST /v1/chat/completions."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request

from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    ServerOf,
    event_stream_response,
    json_response,
    prepare,
)
from dovetail_plugins.apis._llama_timings import PROGRESS, TIMINGS, honoured, is_wanted
from dovetail_plugins.apis.chat.response import (
    CHAT,
    ChatChunks,
    ChatResponseOptions,
    chat_reply,
    reasoning_names,
)
from dovetail_plugins.usage import shows_cached, stream_usage


async def create_chat_completion(body: ChatRequest, request: Request, server: ServerOf) -> Any:
    """Answer a conversation, streamed or whole."""
    options = _response_options(server, body)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(max(body.n or 1, body.best_of or 1)))
        ignored = server.fields.check(body, known=("messages.", *honoured(body)))
        generation = await prepare(server, body, request, dialect=CHAT, ignored=ignored)
        steps = generation.steps(server, is_whole=not body.stream)
        owned.push_async_callback(steps.aclose)
        if body.stream:
            run = ChatChunks(generation, options).run
            return await event_stream_response(request, owned, generation.meta, steps, run)
        return await json_response(generation.meta, chat_reply(steps, generation, options))


def _response_options(server: App, body: ChatRequest) -> ChatResponseOptions:
    """Return the options of the response. Raises: RequestError"""
    continues = body.continue_final_message or not body.add_generation_prompt
    role = body.messages[-1].role if continues else server.frontend.response_role
    return ChatResponseOptions(
        role=role,
        num_top_logprobs=num_top_logprobs(body),
        names_tokens=bool(body.logprob_token_ids),
        shows_token_ids=body.return_token_ids,
        shows_reasoning=body.include_reasoning,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        reasoning_names=reasoning_names(server.frontend.reasoning_field),
        echo=_echo(body, role),
        stream_usage=stream_usage(server, body.stream, body.stream_options),
        shows_cached=shows_cached(server, body),
        shows_timings=server.frontend.enable_per_request_metrics,
        times_each=is_wanted(body, TIMINGS),
        shows_progress=is_wanted(body, PROGRESS),
    )


def num_top_logprobs(body: ChatRequest) -> int | None:
    """Return how many candidates are listed per sampled token; None without logprobs."""
    if not body.logprobs:
        return None
    return len(body.logprob_token_ids or ()) or body.top_logprobs or 0


def _echo(body: ChatRequest, role: str) -> str:
    """Return the final message's text if it is to be repeated before the answer."""
    final = body.messages[-1]
    if not body.echo or final.role != role or not isinstance(final.content, str):
        return ""
    return final.content


class ChatApi(Api):
    """OpenAI's chat."""

    info = Info(summary="chat completions of the OpenAI API", source="the OpenAI API reference")
    routes = (
        Route(
            method="POST",
            path="/v1/chat/completions",
            endpoint=create_chat_completion,
            body=ChatRequest,
        ),
    )
    task = GENERATE
