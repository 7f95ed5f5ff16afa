"""POST /api/show: a loaded model's own answer, or what the files of another one say.

Source: Ollama's API reference, "Show Model Information".
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from dovetail.errors import ConfigError, EngineDead, RequestError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis.ollama.response import encoded
from dovetail_plugins.created_models.showing import facts_of
from dovetail_plugins.created_models.store import CREATED
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.manage.bodies import ModelBody, read_body
from dovetail_plugins.gateway.manage.management import management_of
from dovetail_plugins.gateway.model import ModelState

JSON = ((b"content-type", b"application/json"),)


async def show_model(request: Request) -> Response:
    """Return the facts of a model; one that lies on this machine is not loaded for that. Raises:
    NotFound, RequestError"""
    fleet = management_of(request).fleet
    body = await read_body(request, ModelBody)
    catalogue = fleet.catalogue
    stored = await asyncio.to_thread(catalogue.find, body.named) if catalogue else None
    known = fleet.known(body.named)
    is_loaded = known is not None and known.state is ModelState.LOADED
    if catalogue is None or stored is None or (is_loaded and stored.store != CREATED):
        return await _of_server(fleet, body.named, await request.body())
    facts = await asyncio.to_thread(_of_files, catalogue, stored)
    return Response(encoded(facts), media_type="application/json")


def _of_files(catalogue: Catalogue, stored: StoredModel) -> dict[str, object]:
    try:
        config = catalogue.entry(stored).config
        return facts_of(config, stored, catalogue.created.modelfile(stored.name, stored))
    except (ConfigError, OSError) as error:
        raise RequestError(f'"{stored.name}" cannot be shown: {error}', where="model") from error


async def _of_server(fleet: Fleet, name: str, body: bytes) -> Response:
    """Return the answer of a model's server. Raises: NotFound, Overloaded, EngineDead"""
    model = await fleet.find(name)
    async with fleet.lease(model) as server:
        try:
            stream = server.connections.stream("POST", b"/api/show", JSON, body)
            async with stream as answer:
                data = b"".join([piece async for piece in answer.pieces()])
        except ConnectionError as error:
            raise EngineDead(f"the model's server ended ({error}).", fix="try again.") from error
    return Response(data, status_code=answer.status, media_type="application/json")
