"""A gateway's answers in Ollama's format: the lists of all models, which no single server has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail_plugins.apis.ollama.response import written_time
from dovetail_plugins.gateway.model import GatewayModel


async def list_models(request: Request) -> Response:
    """Return all names. Of unloaded models only the name is known."""
    state = request.app.state.server
    models: Sequence[GatewayModel] = state.fleet.models
    created = written_time(datetime.fromtimestamp(state.created_s, UTC))
    known = await asyncio.gather(*(_listed_models(model, "/api/tags") for model in models))
    rows = [
        row
        for model, model_rows in zip(models, known, strict=True)
        for row in model_rows or [_unloaded(name, created) for name in model.entry.every_name]
    ]
    return JSONResponse({"models": rows})


async def list_loaded(request: Request) -> Response:
    """Return the names of the models that are loaded."""
    models: Sequence[GatewayModel] = request.app.state.server.fleet.models
    known = await asyncio.gather(*(_listed_models(model, "/api/ps") for model in models))
    return JSONResponse({"models": [row for rows in known for row in rows]})


async def _listed_models(model: GatewayModel, path: str) -> list[Any]:
    """Return what a model's server lists; empty if the model is not loaded."""
    answer = await model.ask(path)
    return answer.json()["models"] if answer is not None and answer.status == 200 else []


def _unloaded(name: str, created: str) -> dict[str, Any]:
    facts = {"modified_at": created, "size": 0, "digest": "", "details": {}}
    return {"name": name, "model": name, **facts}
