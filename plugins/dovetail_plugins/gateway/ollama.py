"""A gateway's answers in Ollama's format: the lists of all models, which no single server has."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis._capabilities import Capabilities
from dovetail_plugins.apis.ollama.models import NEVER
from dovetail_plugins.apis.ollama.response import written_time
from dovetail_plugins.gateway.abilities import capabilities_by_name
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.model import GatewayModel


async def list_models(request: Request) -> Response:
    """Return all names. Of unloaded models that were named at the start only the name is known."""
    state = request.app.state.server
    fleet: Fleet = state.fleet
    models: Sequence[GatewayModel] = fleet.models
    created = written_time(datetime.fromtimestamp(state.created_s, UTC))
    known = await asyncio.gather(*(_listed_models(model, "/api/tags") for model in models))
    stored = {one.name: one for one in await fleet.stored()}
    can = await capabilities_by_name(fleet, state.abilities)
    rows = []
    for model, model_rows in zip(models, known, strict=True):
        names = model.entry.every_name
        rows += model_rows or [
            (_of_store(stored[name]) if name in stored else _unloaded(name, created))
            | _ability(can.get(model.name))
            for name in names
        ]
    rows += [_of_store(one) | _ability(can.get(one.name)) for one in await fleet.others()]
    return JSONResponse({"models": rows})


async def list_loaded(request: Request) -> Response:
    """Return the names of the models that are loaded, and until when they stay."""
    models: Sequence[GatewayModel] = request.app.state.server.fleet.models
    known = await asyncio.gather(*(_listed_models(model, "/api/ps") for model in models))
    rows = [
        row | {"expires_at": expiry(model)}
        for model, model_rows in zip(models, known, strict=True)
        for row in model_rows
    ]
    return JSONResponse({"models": rows})


async def _listed_models(model: GatewayModel, path: str) -> list[Any]:
    """Return what a model's server lists, without aliases; empty if the model is not loaded."""
    answer = await model.ask(path)
    rows = answer.json()["models"] if answer is not None and answer.status == 200 else []
    return [row for row in rows if row["name"] not in model.entry.aliases]


def expiry(model: GatewayModel) -> str:
    """Return when a model leaves memory if no other request comes."""
    left_s = model.idle_for_s()
    if left_s is None:
        return NEVER
    return written_time(datetime.now(UTC) + timedelta(seconds=left_s))


def _ability(known: Capabilities | None) -> dict[str, Any]:
    return {} if known is None else {"capabilities": known.for_ollama()}


def _unloaded(name: str, created: str) -> dict[str, Any]:
    facts = {"modified_at": created, "size": 0, "digest": "", "details": {}}
    return {"name": name, "model": name, **facts}


def _of_store(model: StoredModel) -> dict[str, Any]:
    """Return what the stores know of a model that is not loaded."""
    path = model.path
    changed_s = path.stat().st_mtime if path.exists() else 0.0
    digest = hashlib.sha256(f"{path} {model.num_bytes} {changed_s}".encode()).hexdigest()
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": written_time(datetime.fromtimestamp(changed_s, UTC)),
        "size": model.num_bytes,
        "digest": digest,
        "details": {
            "parent_model": "",
            "format": "gguf" if path.is_file() else "safetensors",
            "family": model.family,
            "families": [model.family] if model.family else [],
            "parameter_size": "",
            "quantization_level": model.label,
        },
    }
