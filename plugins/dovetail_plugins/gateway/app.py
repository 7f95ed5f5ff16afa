"""build_gateway: the gateway's own routes and a catch-all route, inside the layers of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.interfaces.api import Api
from dovetail.observability import metrics
from dovetail.server.families import flags_by_path
from dovetail.server.generate.body.ignored_fields import HEADER
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.http.errors import problem
from dovetail.server.http.front_door import add_front_door
from dovetail.server.http.middleware import OpenRequests
from dovetail.version import __version__
from dovetail_plugins.apis.admin.routes import FLAG as DEV
from dovetail_plugins.gateway import cards, ollama
from dovetail_plugins.gateway import metrics as gateway_metrics
from dovetail_plugins.gateway.abilities import KnownAbilities
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.forward import Forward
from dovetail_plugins.gateway.manage.access import Access
from dovetail_plugins.gateway.manage.management import Management
from dovetail_plugins.gateway.manage.routes import GUARDED, MANAGEMENT, BlobsApi
from dovetail_plugins.gateway.model import GatewayModel, ModelState
from dovetail_plugins.gateway.page import hidden_routes, page_routes


@dataclass(slots=True, kw_only=True)
class GatewayAdmission:
    """The number of open requests, and whether the server is draining. Shutdown waits for them."""

    open_requests: OpenRequests
    is_draining: bool = False

    @property
    def num_inside(self) -> int:
        """Return the number of POST requests being answered."""
        return self.open_requests.count


@dataclass(slots=True, kw_only=True)
class GatewayState:
    """The application state that the layers of a server read."""

    frontend: FrontendConfig
    admission: GatewayAdmission
    fleet: Fleet
    management: Management
    abilities: KnownAbilities = field(default_factory=KnownAbilities)
    created_s: int = field(default_factory=lambda: int(time.time()))


def build_gateway(
    fleet: Fleet,
    frontend: FrontendConfig,
    apis: Iterable[Api],
    gateway: GatewayConfig = GatewayConfig(),  # noqa: B008 (frozen)
) -> FastAPI:
    """Return the application. Raises: ConfigError for invalid middleware or an empty key"""
    families = [*apis, BlobsApi(None)]
    app = FastAPI(title="dovetail", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.open_requests = OpenRequests()
    admission = GatewayAdmission(open_requests=app.state.open_requests)
    management = Management(fleet, Access(frontend, gateway))
    app.state.server = GatewayState(
        frontend=frontend, admission=admission, fleet=fleet, management=management
    )
    app.state.flags_by_path = flags_by_path(families)
    page = page_routes(frontend)
    app.state.open_endpoints = {health, live, ready, *page.values()}
    if management.access.has_own_keys:  # which are checked there
        app.state.open_endpoints |= GUARDED
    closed = () if frontend.enable_dev_endpoints else _paths_of(families, DEV)
    for path, endpoint, methods in OWN:
        app.router.routes.append(Route(path, endpoint, methods=list(methods)))
    for path, endpoint in (*page.items(), *hidden_routes(frontend)):
        app.router.routes.append(Route(path, endpoint, methods=["GET"]))
    app.router.routes.append(
        Route("/{path:path}", Forward(fleet, closed, lambda: admission.is_draining))
    )
    add_front_door(
        app,
        frontend,
        families,
        is_busy=lambda: any(model.num_running for model in fleet.models),
        shown_headers=(HEADER, CLAMPED_HEADER),
    )
    return app


def _paths_of(apis: Iterable[Api], flag: str) -> set[str]:
    return {route.path for api in apis for route in api.routes if route.flag == flag}


def _state(request: Request) -> GatewayState:
    state: GatewayState = request.app.state.server
    return state


async def live(request: Request) -> Response:
    """Return 200 if this process responds."""
    return Response(status_code=200)


async def ready(request: Request) -> Response:
    """Return 200 if new work is accepted, else 503."""
    if _state(request).admission.is_draining:
        return problem(503, "the server is shutting down.", kind="unavailable").response()
    return Response(status_code=200)


async def health(request: Request) -> Response:
    """Return each model's state; 503 only if no model can do any work."""
    models = _state(request).fleet.models
    states = await asyncio.gather(*map(_health_of, models))
    faults = [one for one in states if one["state"] in ("failed", "unhealthy")]
    status = "ok" if not faults else "degraded" if len(faults) < len(states) else "failed"
    code = 503 if status == "failed" else 200
    return JSONResponse({"status": status, "models": states}, status_code=code)


async def _health_of(model: GatewayModel) -> dict[str, Any]:
    entry = model.health_entry()
    if model.state is ModelState.UNLOADED and model.may_start_s > time.monotonic():
        return entry | {"state": "failed"}
    answer = await model.ask("/health")
    if model.state is ModelState.LOADED and (answer is None or answer.status != 200):
        return entry | {"state": "unhealthy"}
    return entry


async def version(request: Request) -> Response:
    """Return dovetail's version."""
    return JSONResponse({"version": __version__})


async def load(request: Request) -> Response:
    """Return the load of all loaded models, in total and per model."""
    models = _state(request).fleet.models
    answers = await asyncio.gather(*(model.ask("/load") for model in models))
    each = {
        model.name: answer.json()
        for model, answer in zip(models, answers, strict=True)
        if answer is not None and answer.status == 200
    }
    sums = {name: sum(one[name] for one in each.values()) for name in ("running", "waiting")}
    return JSONResponse(sums | {"inside": _state(request).admission.num_inside, "models": each})


async def show_metrics(request: Request) -> Response:
    """Return the metrics of the gateway and of all loaded models as Prometheus text."""
    models = _state(request).fleet.models
    answers = await asyncio.gather(*(model.ask("/metrics") for model in models))
    texts = {
        model.name: answer.text
        for model, answer in zip(models, answers, strict=True)
        if answer is not None and answer.status == 200
    }
    text = gateway_metrics.merged(gateway_metrics.own_text(), texts)
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


OWN: tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...] = (
    ("/health", health, ("GET",)),
    ("/v1/health", health, ("GET",)),
    ("/ping", health, ("GET", "POST")),
    ("/live", live, ("GET",)),
    ("/ready", ready, ("GET",)),
    ("/version", version, ("GET",)),
    ("/load", load, ("GET",)),
    ("/metrics", show_metrics, ("GET",)),
    ("/api/tags", ollama.list_models, ("GET",)),
    ("/api/ps", ollama.list_loaded, ("GET",)),
    ("/v1/models", cards.list_models, ("GET",)),
    ("/v1/models/{name:path}", cards.show_model, ("GET",)),
    *MANAGEMENT,
)
"""Path, endpoint and methods of the routes that the gateway answers itself."""
