"""POST /invocations: any request of the model, dispatched by its fields.

Source: the container contract of Amazon SageMaker, and the HTTP API of `vllm serve`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import Request
from starlette.types import Message

from dovetail.errors import RequestError
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.data.pooling_params import CLASSIFY, EMBED, SPEAK
from dovetail.interfaces.plugin import Info
from dovetail.json_values import InvalidJson, body_fault, json_value

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, CLASSIFY_PATH, POOLING = "/v1/embeddings", "/classify", "/pooling"
SPEECH = "/v1/audio/speech"
INPUT_PATHS = (EMBEDDINGS, CLASSIFY_PATH)
POOLING_FIELD = "task"
"""With this field, inputs go to /pooling."""
SCORES = {"text_1": "/score", "queries": "/score", "data_1": "/score", "query": "/rerank"}
"""A field in the body -> the path that answers it, for any model."""


async def invoke(request: Request) -> Any:
    """Answer a chat (`messages`), a completion (`prompt`), vectors, classes or speech (`input`),
    scores (`text_1`) or a ranking (`query`) on the path of hosting services."""
    raw = await request.body()
    path = target_of(raw, request.app.state.server.tasks)
    endpoint = next(
        route for route in request.app.router.routes if getattr(route, "path", None) == path
    )

    async def receive() -> Message:
        if sent:
            return await request.receive()
        sent.append(True)
        return {"type": "http.request", "body": raw, "more_body": False}

    sent: list[bool] = []
    return await endpoint.get_route_handler()(Request(request.scope, receive))


def targets(tasks: Collection[str]) -> dict[str, str]:
    """Return field -> the path that answers a body with it, for a model with these tasks."""
    if GENERATE in tasks:
        return {"messages": CHAT, "prompt": COMPLETIONS}
    paths = {EMBED: EMBEDDINGS, CLASSIFY: CLASSIFY_PATH, SPEAK: SPEECH}
    of_input = next((path for task, path in paths.items() if task in tasks), POOLING)
    return {"messages": of_input, "input": of_input, **SCORES}


def target_of(raw: bytes, tasks: Collection[str]) -> str:
    """Return the path that answers a body. Raises: RequestError"""
    try:
        body = json_value(raw)
    except InvalidJson as error:
        raise RequestError(body_fault(error), code="invalid_json") from error
    by_field = targets(tasks)
    paths = [path for name, path in by_field.items() if isinstance(body, dict) and name in body]
    if len(paths) != 1:
        known = ", ".join(f"{name} for {path}" for name, path in by_field.items())
        raise RequestError(f"send one of these fields: {known}.")
    return POOLING if POOLING_FIELD in body and paths[0] in INPUT_PATHS else paths[0]


class InvocationsApi(Api):
    """The path of hosting services."""

    info = Info(
        summary="every kind of request under the path of hosting services",
        source="the container contract of Amazon SageMaker",
    )
    routes = (Route(method="POST", path="/invocations", endpoint=invoke),)
