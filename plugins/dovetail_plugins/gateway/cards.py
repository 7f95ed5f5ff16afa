"""A gateway's /v1/models: every name, its model's state, capabilities and need of memory."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis._capabilities import Capabilities
from dovetail_plugins.gateway.abilities import capabilities_by_name
from dovetail_plugins.gateway.model import GatewayModel, ModelState
from dovetail_plugins.gateway.ollama import expiry


async def list_models(request: Request) -> Response:
    """Return all names of all models, loaded or not, with the model's state."""
    return JSONResponse({"object": "list", "data": await all_cards(request)})


async def show_model(request: Request) -> Response:
    """Return the card of one name."""
    name = request.path_params["name"]
    state = request.app.state.server
    model = await state.fleet.find(name)
    return JSONResponse(_ability(model.need.capabilities) | _card(state, model, name))


async def all_cards(request: Request) -> list[dict[str, Any]]:
    """Return the cards of all names, those of the fleet first."""
    state = request.app.state.server
    stored = {one.name: one for one in await state.fleet.stored()}
    can = await capabilities_by_name(state.fleet, state.abilities)
    cards = [
        _ability(can.get(one.name)) | _card(state, one, name) | _size(stored.get(one.name))
        for one in state.fleet.models
        for name in one.entry.every_name
    ]
    others = await state.fleet.others()
    return cards + [_ability(can.get(one.name)) | _stored_card(state, one) for one in others]


def _ability(known: Capabilities | None) -> dict[str, Any]:
    return {} if known is None else {"capabilities": known.for_openai()}


def _size(model: StoredModel | None) -> dict[str, Any]:
    return {} if model is None else {"size_bytes": model.num_bytes}


def _stored_card(state: Any, model: StoredModel) -> dict[str, Any]:
    """Return the card of a model of this machine that no request has named yet."""
    fault = {"fault": model.fault} if model.fault else {}
    return {
        "id": model.name,
        "object": "model",
        "created": state.created_s,
        "owned_by": "dovetail",
        "size_bytes": model.num_bytes,
        "state": str(ModelState.UNLOADED),
        **fault,
    }


def _card(state: Any, model: GatewayModel, name: str) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": state.created_s,
        "owned_by": "dovetail",
        "max_model_len": model.need.context_tokens,
    }
    parent = None if name in model.entry.names else model.name
    place = {"root": model.name, "parent": parent}
    memory: dict[str, Any] = {"needed_bytes": model.need.num_bytes}
    if model.is_resident:
        memory["expires_at"] = expiry(model)
    return card | model.card | place | {"state": str(model.state)} | memory
