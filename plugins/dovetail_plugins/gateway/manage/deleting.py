"""DELETE /api/delete, as Ollama has it, and DELETE /v1/models/NAME, as OpenAI has it.

Source: Ollama's API reference, "Delete a Model"; OpenAI's, "Delete a fine-tuned model".
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.errors import ConfigError, RequestError, model_not_found
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.created_models.store import CREATED
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.manage.bodies import ModelBody, read_body
from dovetail_plugins.gateway.manage.management import Management, management_of
from dovetail_plugins.model_removal import Removal, removal_of
from dovetail_plugins.ollama_registry.removal import RegistryRemoval


async def delete_model(request: Request) -> Response:
    """Delete the model that the body names. Raises: RequestError"""
    body = await read_body(request, ModelBody)
    await delete(management_of(request), body.named)
    return Response(status_code=200)


async def delete_named(request: Request) -> Response:
    """Delete the model that the path names. Raises: RequestError"""
    name = request.path_params["name"]
    await delete(management_of(request), name)
    return JSONResponse({"id": name, "object": "model", "deleted": True})


async def delete(management: Management, name: str) -> None:
    """Delete a model once its requests have ended. Raises: RequestError if it may not be deleted,
    before anything has changed"""
    catalogue, fleet = management.catalogue, management.fleet
    model = await asyncio.to_thread(catalogue.find, name)
    if model is None:
        if fleet.known(name) is not None:
            raise RequestError(
                f'the model "{name}" was named when the server started.',
                where="model",
                fix="delete its files yourself.",
            )
        raise model_not_found(name, [one.name for one in await fleet.stored()])
    async with management.lock:
        if model.store != CREATED:
            await asyncio.to_thread(_removal, catalogue, model)  # only checks
        await management.let_go(model.name)
        await asyncio.to_thread(_delete, catalogue, model)
        catalogue.forget()
        await management.let_go(model.name)  # a request may have loaded it again meanwhile


def _delete(catalogue: Catalogue, model: StoredModel) -> None:
    if model.store == CREATED:
        catalogue.created.remove(model.name)
    else:
        _removal(catalogue, model).run()


def _removal(catalogue: Catalogue, model: StoredModel) -> Removal | RegistryRemoval:
    try:
        return removal_of(catalogue.stores, model.name, "model")
    except ConfigError as error:
        raise RequestError(error.what, where=error.where, fix=error.fix) from error
