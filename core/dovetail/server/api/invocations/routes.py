"""POST /invocations: a chat or a completion, told apart by its fields.

Source: the container contract of Amazon SageMaker, and the HTTP API of `vllm serve`.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from starlette.types import Message

from dovetail.errors import RequestError
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.plugin import Info

TARGETS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""The field that a body must have -> the path that answers it."""


async def invoke(request: Request) -> Any:
    """Answer a chat (`messages`) or a completion (`prompt`) on the path of hosting services."""
    raw = await request.body()
    path = target_of(raw)
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


def target_of(raw: bytes) -> str:
    """Return the path that answers a body. Raises: RequestError"""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError("the request body is not valid JSON.", code="invalid_json") from error
    paths = [path for name, path in TARGETS.items() if isinstance(body, dict) and name in body]
    if len(paths) != 1:
        raise RequestError("send either messages, for a chat, or prompt, for a completion.")
    return paths[0]


class InvocationsApi(Api):
    """The path of hosting services."""

    info = Info(
        summary="chats and completions under the path of hosting services",
        source="the container contract of Amazon SageMaker",
    )
    routes = (Route(method="POST", path="/invocations", endpoint=invoke),)
    task = GENERATE
