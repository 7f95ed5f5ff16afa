"""POST /models/load and /models/unload, and GET /models, as llama.cpp's server has them.

Source: "Using multiple models" in the documentation of llama.cpp's server.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail_plugins.gateway.cards import all_cards
from dovetail_plugins.gateway.manage.bodies import ModelBody, read_body
from dovetail_plugins.gateway.manage.management import management_of


async def load_model(request: Request) -> Response:
    """Answer once a model is loaded. Raises: NotFound, RequestError, Overloaded"""
    fleet = management_of(request).fleet
    body = await read_body(request, ModelBody)
    async with fleet.lease(await fleet.find(body.named)):
        return JSONResponse({"success": True})


async def unload_model(request: Request) -> Response:
    """Answer once a model's requests have ended and it is out of memory. Raises: NotFound,
    RequestError"""
    fleet = management_of(request).fleet
    body = await read_body(request, ModelBody)
    await fleet.let_go(await fleet.find(body.named))
    return JSONResponse({"success": True})


async def list_models(request: Request) -> Response:
    """Return the cards of /v1/models, each with its state as llama.cpp's server writes it."""
    cards = [card | {"status": {"value": card["state"]}} for card in await all_cards(request)]
    return JSONResponse({"object": "list", "data": cards})
