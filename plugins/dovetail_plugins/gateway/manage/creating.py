"""POST /api/create and /api/copy: further names for models, with their own settings.

Source: Ollama's API reference, "Create a Model" and "Copy a Model".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.errors import RequestError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis.ollama.response import MEDIA_TYPE, encoded, line
from dovetail_plugins.created_models.names import full_name
from dovetail_plugins.created_models.store import CREATED, Record
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.manage.bodies import CopyBody, CreateBody, read_body
from dovetail_plugins.gateway.manage.lines import Line
from dovetail_plugins.gateway.manage.making import base_of, checked_put, record_of
from dovetail_plugins.gateway.manage.management import Management, management_of
from dovetail_plugins.gateway.manage.pulling import lines_response
from dovetail_plugins.gateway.manage.quantizing import method_of, quantized
from dovetail_plugins.modelfile.fields import fields_of


async def copy_model(request: Request) -> Response:
    """Give a model a further name. Raises: RequestError"""
    management = management_of(request)
    body = await read_body(request, CopyBody)
    name = full_name(body.destination, "destination")
    record = await asyncio.to_thread(base_of, management.catalogue, body.source, "source")
    await _put(management, name, record)
    return Response(status_code=200)


async def create_model(request: Request) -> Response:
    """Make a model; answer with Ollama's status lines. Raises: RequestError for what is wrong
    before the first line"""
    management = management_of(request)
    body = await read_body(request, CreateBody)
    name = full_name(body.named, "model")
    record = await asyncio.to_thread(record_of, management.catalogue, body)
    if body.quantize:
        method_of(body.quantize)
        lines = _quantized_lines(management, name, record, body.quantize)
        return await lines_response(request, lines, is_stream=body.stream is not False)
    await _put(management, name, record)
    if body.stream is False:
        return JSONResponse({"status": "success"})
    texts = [*_statuses(record), "writing manifest", "success"]
    data = b"".join(line(encoded({"status": text})) for text in texts)
    return Response(data, media_type=MEDIA_TYPE)


async def _quantized_lines(
    management: Management, name: str, record: Record, kind: str
) -> AsyncGenerator[Line, None]:
    """Yield the lines of a model that is quantized and then stored."""
    found: list[Record] = []
    try:
        async with management.quantizing:
            work = quantized(management.catalogue, record, kind, found)
            async with contextlib.aclosing(work):
                async for one in work:
                    yield one
        if not found:
            return
        await _put(management, name, found[0])
        for text in [*_statuses(found[0]), "writing manifest", "success"]:
            yield {"status": text}
    except (RequestError, OSError) as error:
        yield {"error": error.advice if isinstance(error, RequestError) else str(error)}


def _statuses(record: Record) -> list[str]:
    found = [f"using existing layer sha256:{digits}" for digits in sorted(record.digests)]
    left_out = [one for one in fields_of(record.modelfile).left_out if one != "LICENSE"]
    if left_out:
        found.append(f"left out, as it has no equal here: {', '.join(left_out)}")
    return found


async def _put(management: Management, name: str, record: Record) -> None:
    """Check a model, and store it in place of an older one once that is out of memory. Raises:
    RequestError"""
    catalogue, fleet = management.catalogue, management.fleet
    async with management.lock:
        there = await asyncio.to_thread(_exactly, catalogue, name)
        known = fleet.known(name)
        is_named_at_start = known is not None and known.entry.path is None
        if is_named_at_start or (there is not None and there.store != CREATED):
            whose = there.store if there is not None else "the command line"
            raise RequestError(
                f'the name "{name}" belongs to a model of {whose}.', fix="use another name."
            )
        await asyncio.to_thread(checked_put, catalogue, name, record)
        catalogue.forget()
        await management.let_go(name)


def _exactly(catalogue: Catalogue, name: str) -> StoredModel | None:
    found = catalogue.find(name)
    return found if found is not None and found.name == name else None
