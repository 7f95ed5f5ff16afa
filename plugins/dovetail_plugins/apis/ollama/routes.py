"""POST /api/chat and /api/generate, and the other paths that Ollama's clients use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dovetail.errors import NotFound, RequestError
from dovetail.interfaces.api import GENERATE as GENERATE_TASK
from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.data.pooling_params import EMBED
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import (
    HEADER,
    App,
    ChatRequest,
    Dialect,
    Generation,
    ServerOf,
    event_stream_response,
    header_value,
    in_words_of,
    prepare,
)
from dovetail_plugins.apis.ollama.context import carried_on, checked
from dovetail_plugins.apis.ollama.continuation import prepare_continuation
from dovetail_plugins.apis.ollama.embed import embed, embed_prompt
from dovetail_plugins.apis.ollama.fitting import fitted
from dovetail_plugins.apis.ollama.input import (
    CHAT_NAMES,
    GENERATE_NAMES,
    chat_of,
    chat_of_prompt,
    image_names,
    switches,
    turns_of,
)
from dovetail_plugins.apis.ollama.keep_alive import seconds_of
from dovetail_plugins.apis.ollama.models import (
    list_loaded,
    list_models,
    meant_model,
    show_model,
    show_version,
)
from dovetail_plugins.apis.ollama.options import check_fields
from dovetail_plugins.apis.ollama.protocol import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    OllamaShowRequest,
)
from dovetail_plugins.apis.ollama.response import (
    CHAT,
    GENERATE,
    MEDIA_TYPE,
    OllamaAnswer,
    Shape,
    answer_fields,
    answer_lines,
    as_message,
    as_response,
    empty_delta,
    encoded,
    error_body,
    framing,
    line,
    whole_answer,
)
from dovetail_plugins.apis.ollama.template import renders_suffix, trusting
from dovetail_plugins.usage import shows_cached


async def create_chat(body: OllamaChatRequest, request: Request, server: ServerOf) -> Any:
    """Answer a conversation in Ollama's format, as lines of JSON or whole."""
    began_ns = time.monotonic_ns()
    model, ignored = await _checked(server, body)
    if not body.messages:
        return _loaded(body, as_message)
    with in_words_of(CHAT_NAMES):
        chat = chat_of(body)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        generation = await _prepared(server, body, chat, request, CHAT, model, ignored)
        return await _answered(server, body, request, owned, generation, as_message, began_ns)


async def create_answer(body: OllamaGenerateRequest, request: Request, server: ServerOf) -> Any:
    """Answer or continue a prompt in Ollama's format, as lines of JSON or whole."""
    began_ns = time.monotonic_ns()
    model, ignored = await _checked(server, body)
    if not (body.prompt or body.suffix or body.images):
        return _loaded(body, as_response)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        if body.raw or (body.suffix and not renders_suffix(server, body)):
            generation = await prepare_continuation(
                server, body, request, model=model, ignored=ignored
            )
        else:
            generation = await _prepared_prompt(server, body, request, model, ignored)
        return await _answered(server, body, request, owned, generation, as_response, began_ns)


async def _prepared_prompt(
    server: App, body: OllamaGenerateRequest, request: Request, model: str, ignored: Sequence[str]
) -> Generation:
    """Return a prompt ready for the engine, rendered by the template. Raises: RequestError"""
    trusted = trusting(server, body.template)
    with in_words_of(GENERATE_NAMES):
        turns = turns_of(body)
        if body.context:
            turns = await checked(server, model, body.context, turns)
        chat = chat_of_prompt(body, turns)
    generation = await _prepared(trusted, body, chat, request, GENERATE, model, ignored)
    if not body.context:
        return generation
    with in_words_of(GENERATE_NAMES):
        chat = chat.model_copy(update={"model": model})
        return await carried_on(trusted, generation, chat, body.context, switches(body))


async def _checked(server: App, body: OllamaRequest) -> tuple[str, list[str]]:
    """Return the served name, and the names of fields without effect. Raises: RequestError"""
    return await meant_model(server, body.model), check_fields(server, body)


async def _prepared(
    server: App,
    body: OllamaRequest,
    chat: ChatRequest,
    request: Request,
    dialect: Dialect,
    model: str,
    ignored: Sequence[str],
) -> Generation:
    """Return a conversation ready for the engine. Raises: RequestError, also if thinking is
    requested from a model without it"""
    chat = chat.model_copy(update={"model": model})
    with in_words_of(image_names(body)):
        if body.truncate:
            with in_words_of(dialect.field_names):
                chat = await fitted(server, chat, switches(body))
        generation = await prepare(
            server,
            chat,
            request,
            dialect=dialect,
            ignored=ignored,
            others=switches(body),
        )
    is_heard = not {"think", "reasoning_effort"} & set(generation.meta.ignored)
    if body.think and not is_heard and not generation.plan.can_reason:
        raise RequestError(
            "this model does not think before it answers.",
            where="think",
            fix="leave it out.",
            code="unsupported_field",
        )
    return generation


async def _answered(
    server: App,
    body: OllamaRequest,
    request: Request,
    owned: AsyncExitStack,
    generation: Generation,
    shape: Shape,
    began_ns: int,
) -> Response:
    """Return the response. Mutates: owned (a stream takes over its contents)"""
    meta = generation.meta
    num_top = (body.top_logprobs or 0) if body.logprobs else None
    has_context = isinstance(body, OllamaGenerateRequest) and not (body.raw or generation.parts)
    answer = OllamaAnswer(
        meta,
        shape,
        model=body.model,
        began_ns=began_ns,
        num_top=num_top,
        shows_cached=shows_cached(server, body),
        prompt_ids=generation.prompt_ids if has_context else None,
    )
    steps = generation.steps(server)
    owned.push_async_callback(steps.aclose)
    if body.stream is not False:
        run = partial(answer_lines, answer=answer)
        return await event_stream_response(request, owned, meta, steps, run, framing(answer))
    data = await whole_answer(steps, answer)
    return Response(data, media_type="application/json", headers=meta.headers())


def _loaded(body: OllamaRequest, shape: Shape) -> Response:
    """Return the answer to an empty request: the model is loaded. Raises: RequestError if it asks
    to unload it"""
    if body.keep_alive is not None and seconds_of(body.keep_alive) == 0:
        raise RequestError(
            "the model stays loaded while the server runs.",
            where="keep_alive",
            fix="`dovetail stop` ends the server.",
        )
    data = encoded(answer_fields(body.model, shape(empty_delta()), {"done_reason": "load"}))
    headers = {} if body.keep_alive is None else {HEADER: header_value(["keep_alive"])}
    is_stream = body.stream is not False
    return Response(
        line(data) if is_stream else data,
        media_type=MEDIA_TYPE if is_stream else "application/json",
        headers=headers,
    )


async def refuse_change() -> None:
    """Refuse: the models of a server are not changed while it runs."""
    raise NotFound(
        "a server does not fetch, make, copy or delete models.",
        fix="`dovetail pull` and `dovetail rm` do, on the server's machine; then start a server "
        "with the model.",
        code="not_supported",
    )


class OllamaApi(Api):
    """Ollama's API."""

    info = Info(summary="chat, generate and embed of Ollama's API", source="Ollama's API reference")
    routes = (
        Route(
            method="POST",
            path="/api/chat",
            endpoint=create_chat,
            body=OllamaChatRequest,
            tasks=(GENERATE_TASK,),
            takes_any_type=True,
        ),
        Route(
            method="POST",
            path="/api/generate",
            endpoint=create_answer,
            body=OllamaGenerateRequest,
            tasks=(GENERATE_TASK,),
            takes_any_type=True,
        ),
        Route(
            method="POST",
            path="/api/embed",
            endpoint=embed,
            body=OllamaEmbedRequest,
            tasks=(EMBED,),
            takes_any_length=True,
            takes_any_type=True,
        ),
        Route(
            method="POST",
            path="/api/embeddings",
            endpoint=embed_prompt,
            body=OllamaEmbeddingsRequest,
            tasks=(EMBED,),
            takes_any_length=True,
            takes_any_type=True,
        ),
        Route(method="GET", path="/api/tags", endpoint=list_models),
        Route(method="GET", path="/api/ps", endpoint=list_loaded),
        Route(
            method="POST",
            path="/api/show",
            endpoint=show_model,
            body=OllamaShowRequest,
            takes_any_type=True,
        ),
        Route(method="GET", path="/api/version", endpoint=show_version),
        Route(method="POST", path="/api/pull", endpoint=refuse_change),
        Route(method="POST", path="/api/push", endpoint=refuse_change),
        Route(method="POST", path="/api/create", endpoint=refuse_change),
        Route(method="POST", path="/api/copy", endpoint=refuse_change),
        Route(method="DELETE", path="/api/delete", endpoint=refuse_change),
    )

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return Ollama's JSON error body."""
        return error_body(status, error, request_id)
