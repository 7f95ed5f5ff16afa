"""POST /api/pull: fetches a model of the hub or of Ollama's registry, with progress as Ollama's
lines.

Source: Ollama's API reference, "Pull a Model".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dovetail.config.checkpoint.sources.model_path import is_hub_id
from dovetail.errors import NotFound, RequestError
from dovetail.server.http.errors import ClientDisconnected
from dovetail_plugins.apis.ollama.models import LATEST
from dovetail_plugins.apis.ollama.response import MEDIA_TYPE, encoded, line
from dovetail_plugins.gateway.catalogue import HUB_PREFIXES
from dovetail_plugins.gateway.manage.bodies import PullBody, read_body
from dovetail_plugins.gateway.manage.lines import Line
from dovetail_plugins.gateway.manage.management import Management, management_of
from dovetail_plugins.ollama_registry.names import HOSTS, registry_name


async def pull_model(request: Request) -> Response:
    """Fetch a model. Raises: RequestError for a name that nobody can have"""
    management = management_of(request)
    body = await read_body(request, PullBody)
    name, quant = pulled_name(body.named)
    management.catalogue  # noqa: B018 (raises)
    lines = _lines(management, name, quant)
    return await lines_response(request, lines, is_stream=body.stream is not False)


async def lines_response(
    request: Request, lines: AsyncIterator[Line], *, is_stream: bool
) -> Response:
    """Return lines of progress as they come, or only the last one. Raises: ClientDisconnected"""
    if is_stream:
        return StreamingResponse((line(encoded(one)) async for one in lines), media_type=MEDIA_TYPE)
    last = await _last_of(request, lines)
    return JSONResponse(last, status_code=500 if "error" in last else 200)


async def push_model(request: Request) -> Response:
    """Refuse. Raises: NotFound"""
    raise NotFound(
        "a server does not send models to a registry.",
        fix="`hf upload` sends a model's files to the hub.",
        code="not_supported",
    )


def pulled_name(name: str) -> tuple[str, str]:
    """Return (ORG/MODEL of the hub, quantization or empty), or (the whole name of a model of
    Ollama's registry, empty). Raises: RequestError"""
    found = registry_name(name)
    if found is not None:
        return found.full, ""
    bare = name
    for prefix in HUB_PREFIXES:
        if name.lower().startswith(prefix):
            bare = name[len(prefix) :]
    repo, _, quant = bare.removesuffix(LATEST).partition(":")
    if "/" not in repo or not is_hub_id(repo) or "/" in quant:
        raise RequestError(
            f"{name[:256]!r} is not a name of the hub or of Ollama's registry.",
            where="model",
            fix="a name of the hub is ORG/MODEL, or ORG/MODEL:QUANT for a GGUF file; one of "
            f"Ollama's registry is MODEL:TAG, or {HOSTS[0]}USER/MODEL:TAG.",
        )
    return repo, quant


async def _lines(management: Management, name: str, quant: str) -> AsyncIterator[Line]:
    """Yield the lines of a download; a model that arrived can be named at once."""
    catalogue = management.catalogue
    lines = management.pulls.lines(name, quant, catalogue.hub)
    async with contextlib.aclosing(lines):
        async for one in lines:
            if one.get("status") == "success":
                catalogue.forget()
            yield one


async def _last_of(request: Request, lines: AsyncIterator[Line]) -> Line:
    """Return the last line. Raises: ClientDisconnected; the download then ends"""

    async def read() -> Line:
        last: Line = {}
        async for one in lines:
            last = one
        return last

    reading = asyncio.ensure_future(read())
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((reading, left), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise ClientDisconnected
        return await reading
    finally:
        reading.cancel()
        left.cancel()
        await asyncio.gather(reading, left, return_exceptions=True)


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        continue
