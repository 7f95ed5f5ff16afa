"""build_app: routes, middleware and error handlers around one engine.

Knows no process, socket or signal: `launch` does. Tests call it with a fake engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dovetail.config.report.in_force import InForce
from dovetail.config.rules.platform import usable_cores
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import DovetailError, NotFound
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.observability import metrics
from dovetail.registry import hooks
from dovetail.server.api.families import ServedApi, flags_by_path, is_on, states_of
from dovetail.server.generate.body_route import BodyRoute
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.generate.ignored_fields import HEADER
from dovetail.server.generate.server_state import Parsers, ServerState, build_server
from dovetail.server.generate.streaming import ClientDisconnected
from dovetail.server.generate.template.building import build_renderer
from dovetail.server.generate.template.chat import ChatRenderer
from dovetail.server.http.body_limits import BodyLimitMiddleware, bytes_per_s
from dovetail.server.http.errors import ErrorBodies, problem_of
from dovetail.server.http.middleware import (
    REQUEST_ID,
    ApiKeyMiddleware,
    ExceptionMiddleware,
    HeadMiddleware,
    OpenRequests,
    RequestIdMiddleware,
    client_left,
)
from dovetail.server.http.not_found import not_found
from dovetail.server.http.user_middleware import add_middleware
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

logger = logging.getLogger("dovetail.server")


def build_app(
    engine: AsyncEngine,
    frontend: FrontendConfig,
    apis: Sequence[ServedApi],
    *,
    parsers: Parsers | None = None,
    max_queued_requests: int | None = None,
    renderer: ChatRenderer | None = None,
    in_force: InForce | None = None,
) -> FastAPI:
    """Return the application. `in_force` is what /settings tells.

    Raises: ConfigError for a template or middleware of no use
    """
    has_docs = not frontend.disable_fastapi_docs
    app = FastAPI(
        title="dovetail",
        version=__version__,
        docs_url="/docs" if has_docs else None,
        redoc_url="/redoc" if has_docs else None,
        openapi_url="/openapi.json" if has_docs else None,
    )
    app.router.route_class = BodyRoute
    app.state.server = build_server(
        engine,
        frontend,
        renderer or build_renderer(engine, frontend),
        parsers or Parsers(),
        max_queued_requests,
        in_force,
    )
    app.state.open_requests = OpenRequests()
    app.state.open_endpoints = set[Callable[..., Any]]()
    app.state.bounded_endpoints = set[Callable[..., Any]]()
    app.state.watched_endpoints = set[Callable[..., Any]]()
    app.state.api_states = states_of(apis)
    app.state.flags_by_path = flags_by_path(served.api for served in apis)
    for served in apis:
        _add_routes(app, served.api, frontend)
    _add_hook_routes(app, engine)
    add_handlers(app)
    add_layers(
        app,
        frontend,
        error_bodies_of(served.api for served in apis),
        is_busy=lambda: sum(engine.load()) > 0,
        max_bytes_of=roomy_paths((served.api for served in apis), frontend),
    )
    for served in apis:
        served.api.bound(app, served.state)
    return app


def _add_routes(app: FastAPI, api: Api, frontend: FrontendConfig) -> None:
    """Add a family's routes that these flags switch on. Mutates: app"""
    server: ServerState = app.state.server
    for route in api.routes:
        if not is_on(route.flag, frontend, server.engine.spec):
            continue
        tasks = api.tasks_of(route)
        can_do = not tasks or not server.tasks.isdisjoint(tasks)
        endpoint = route.endpoint if can_do else _unsupported_task(route, tasks, server)
        app.add_api_route(route.path, endpoint, methods=[route.method], response_model=None)
        if tasks and not route.takes_any_length:
            app.state.bounded_endpoints.add(endpoint)
        if tasks and route.body is not None:
            app.state.watched_endpoints.add(endpoint)
        if route.is_open:
            open_route(app, endpoint)


def _unsupported_task(route: Route, tasks: Sequence[str], server: ServerState) -> Callable[[], Any]:
    """Return an endpoint that says that the model cannot do what the route is for."""
    wanted, able = ('" or "'.join(words) for words in (tasks, sorted(server.tasks)))
    fix = "start the server with another model."
    if GENERATE in server.tasks and not {"transcription", "translation"}.intersection(tasks):
        fix = "start the server with --runner pooling, or with another model."

    async def refuse() -> None:
        raise NotFound(
            f'{route.path} needs a model that can "{wanted}", and the served one can "{able}".',
            fix=fix,
            code="task_not_supported",
        )

    refuse.__doc__ = route.endpoint.__doc__
    return refuse


def roomy_paths(apis: Iterable[Api], frontend: FrontendConfig) -> dict[str, int]:
    """Return the paths whose bodies may be larger than others, where nobody set a limit."""
    if frontend.max_body_bytes != FrontendConfig().max_body_bytes:
        return {}
    return {
        route.path: api.max_body_bytes
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
        }
    )


def open_route(app: FastAPI, endpoint: Callable[..., Any]) -> None:
    """Let a route's endpoint answer without a key. Mutates: app"""
    app.state.open_endpoints.add(endpoint)


def _add_hook_routes(app: FastAPI, engine: AsyncEngine) -> None:
    if engine.spec.hooks:
        manager = hooks.manager_of(engine.spec.hooks)
        hooks.tell(hooks.add_routes, {"app": app}, using=manager)


def add_handlers(app: FastAPI) -> None:
    """Let exceptions become answers. Mutates: app"""
    for kind in (DovetailError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    for left in (ClientDisconnected, ClientDisconnect):
        app.add_exception_handler(left, _answer_gone)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error.__cause__, ClientDisconnect):  # FastAPI calls that a faulty body
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


def add_layers(
    app: FastAPI,
    frontend: FrontendConfig,
    error_bodies: ErrorBodies,
    *,
    is_busy: Callable[[], bool],
    max_bytes_of: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Add what surrounds every route, innermost first. Mutates: app"""
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=frontend.max_body_bytes,
        bytes_per_s=bytes_per_s(usable_cores(), frontend.api_server_count),
        is_busy=is_busy,
        max_bytes_of=max_bytes_of,
    )
    app.add_middleware(
        ApiKeyMiddleware,
        keys=frontend.api_key,
        routes=lambda: app.router.routes,
        open_endpoints=app.state.open_endpoints,
    )
    app.add_middleware(ExceptionMiddleware)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(frontend.allowed_origins),
        allow_methods=list(frontend.allowed_methods),
        allow_headers=list(frontend.allowed_headers),
        allow_credentials=frontend.allow_credentials,
        expose_headers=[REQUEST_ID, HEADER, CLAMPED_HEADER],
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
