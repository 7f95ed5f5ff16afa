"""The front door: the layers around every route, for servers, gateways and `dovetail route`.

Every request passes through them: request id and counts, exceptions turned into answers, CORS, API
keys, and the size and rate of bodies. The caller provides routes and engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dovetail import registry
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import DovetailError
from dovetail.interfaces.api import Api
from dovetail.interfaces.gate import Gate, GateFacts
from dovetail.observability import metrics
from dovetail.server.http.body_limits import BodyLimitMiddleware, bytes_per_s
from dovetail.server.http.errors import ClientDisconnected, ErrorBodies, problem_of
from dovetail.server.http.middleware import (
    REQUEST_ID,
    ExceptionMiddleware,
    GateMiddleware,
    HeadMiddleware,
    RequestIdMiddleware,
    client_left,
    is_open,
)
from dovetail.server.http.not_found import not_found
from dovetail.server.http.user_middleware import add_middleware

logger = logging.getLogger("dovetail.server")


def add_front_door(
    app: FastAPI,
    frontend: FrontendConfig,
    apis: Sequence[Api],
    *,
    is_busy: Callable[[], bool],
    shown_headers: Sequence[str] = (),
    models: tuple[str, ...] = (),
) -> None:
    """Add the front door to an application; a server's has the names of its model.

    Its `state` must have `open_requests`, `open_endpoints`, `flags_by_path` and a `server` with the
    frontend. `apis` are the served families: their paths have their own error formats and sizes.
    Pages of other origins may read `shown_headers`. Mutates: app
    """
    _add_handlers(app)
    _add_layers(
        app,
        frontend,
        error_bodies_of(apis),
        is_busy=is_busy,
        max_bytes_of=roomy_paths(apis, frontend),
        shown_headers=shown_headers,
        models=models,
    )


def roomy_paths(apis: Iterable[Api], frontend: FrontendConfig) -> dict[str, int]:
    """Return the paths with a higher body limit; none if the user set a limit."""
    if frontend.max_body_bytes != FrontendConfig().max_body_bytes:
        return {}
    return {
        route.path.partition("/{")[0]: api.max_body_bytes
        for api in apis
        if api.max_body_bytes is not None
        for route in api.routes
    }


def error_bodies_of(apis: Iterable[Api]) -> ErrorBodies:
    """Return the error bodies of the families that have their own."""
    return ErrorBodies(
        {
            route.path.partition("/{")[0]: api.error_body
            for api in apis
            if type(api).error_body is not Api.error_body
            for route in api.routes
            if route.path != "/"  # several families share it
        }
    )


def _add_handlers(app: FastAPI) -> None:
    """Turn exceptions into answers. Mutates: app"""
    for kind in (DovetailError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    for left in (ClientDisconnected, ClientDisconnect):
        app.add_exception_handler(left, _answer_gone)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error.__cause__, ClientDisconnect):  # FastAPI reports this as an invalid body
        return await _answer_gone(request, error)
    if isinstance(error, HTTPException):
        found = not_found(error, request.scope, request.app.state.flags_by_path)
    else:
        found = problem_of(error)
    metrics.REFUSED_REQUESTS.labels(found.info.type, str(found.status)).inc()
    level = logging.WARNING if found.status >= 500 else logging.INFO
    request_id = request.state.request_id
    stack = error if request.app.state.server.frontend.log_error_stack else None
    logger.log(
        level,
        "request %s refused (%d): %s",
        request_id,
        found.status,
        found.info.message,
        exc_info=stack,
    )
    return found.response(request.scope)


async def _answer_gone(request: Request, error: Exception) -> Response:
    return client_left(request.state.request_id).response()


def _gate(app: FastAPI, frontend: FrontendConfig, models: tuple[str, ...]) -> Gate:
    """Return the gate that --gate names. Raises: PluginError, ConfigError"""
    known, routes = app.state.open_endpoints, app.router.routes
    facts = GateFacts(
        frontend=frontend, is_open=lambda scope: is_open(scope, routes, known), models=models
    )
    gate: Gate = registry.make(registry.choose("gate", frontend.gate, where="--gate"), facts)
    return gate


def _add_layers(
    app: FastAPI,
    frontend: FrontendConfig,
    error_bodies: ErrorBodies,
    *,
    is_busy: Callable[[], bool],
    max_bytes_of: Mapping[str, int],
    shown_headers: Sequence[str],
    models: tuple[str, ...],
) -> None:
    """Add the layers around every route, innermost first. Mutates: app"""
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=frontend.max_body_bytes,
        bytes_per_s=bytes_per_s(usable_cores(), frontend.api_server_count),
        is_busy=is_busy,
        max_bytes_of=max_bytes_of,
    )
    app.state.gate = _gate(app, frontend, models)
    app.add_middleware(GateMiddleware, gate=app.state.gate)
    app.add_middleware(ExceptionMiddleware)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(frontend.allowed_origins),
        allow_methods=list(frontend.allowed_methods),
        allow_headers=list(frontend.allowed_headers),
        allow_credentials=frontend.allow_credentials,
        expose_headers=[REQUEST_ID, *shown_headers],
    )
    add_middleware(app, frontend)
    app.add_middleware(ExceptionMiddleware)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(
        RequestIdMiddleware,
        shows_id=frontend.enable_request_id_headers,
        open_requests=app.state.open_requests,
        error_bodies=error_bodies,
        root_path=(frontend.root_path or "").rstrip("/"),
    )
