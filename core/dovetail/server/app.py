"""build_app: routes, middleware and error handlers around one engine.

Processes, sockets and signals are handled in `launch`. Tests call this with a fake engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from dovetail.config.report.in_force import InForce
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import NotFound
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.data.pooling_params import SPEAK
from dovetail.registry import hooks
from dovetail.server.families import ServedApi, flags_by_path, is_on, states_of
from dovetail.server.generate.application import App, make_app
from dovetail.server.generate.body.ignored_fields import HEADER
from dovetail.server.generate.body.route import BodyRoute
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.generate.model_text import build_model_text
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.http.front_door import add_front_door
from dovetail.server.http.middleware import SOCKET, OpenRequests
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
    """Return the application. `in_force` is the content of GET /settings.

    Raises: ConfigError for an invalid template or middleware
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
    text = build_model_text(engine, frontend, renderer=renderer, parsers=parsers)
    app.state.server = make_app(text, max_queued_requests, in_force)
    app.state.open_requests = OpenRequests()
    app.state.open_endpoints = set[Callable[..., Any]]()
    app.state.bounded_endpoints = set[Callable[..., Any]]()
    app.state.watched_endpoints = set[Callable[..., Any]]()
    app.state.untyped_endpoints = set[Callable[..., Any]]()
    app.state.api_states = states_of(apis)
    app.state.flags_by_path = flags_by_path(served.api for served in apis)
    for served in apis:
        _add_routes(app, served.api, frontend)
    if engine.spec.hooks:
        hooks.tell(hooks.add_routes, {"app": app}, using=hooks.manager_of(engine.spec.hooks))
    add_front_door(
        app,
        frontend,
        [served.api for served in apis],
        is_busy=lambda: sum(engine.load()) > 0,
        shown_headers=(HEADER, CLAMPED_HEADER),
        models=engine.spec.model_names,
    )
    for served in apis:
        served.api.bound(app, served.state)
    return app


def _add_routes(app: FastAPI, api: Api, frontend: FrontendConfig) -> None:
    """Add the routes of a family that these flags turn on. Mutates: app"""
    server: App = app.state.server
    for route in api.routes:
        if not is_on(route.flag, frontend, server.engine.spec):
            continue
        tasks = api.tasks_of(route)
        can_do = not tasks or not server.tasks.isdisjoint(tasks)
        endpoint = route.endpoint if can_do else _unsupported_task(route, tasks, server)
        if route.method == SOCKET:
            app.add_api_websocket_route(route.path, endpoint)
            continue
        app.add_api_route(route.path, endpoint, methods=[route.method], response_model=None)
        if tasks and not route.takes_any_length:
            app.state.bounded_endpoints.add(endpoint)
        if route.takes_any_type:
            app.state.untyped_endpoints.add(endpoint)
        if tasks and route.body is not None:
            app.state.watched_endpoints.add(endpoint)
        if route.is_open:
            open_route(app, endpoint)


def _unsupported_task(route: Route, tasks: Sequence[str], server: App) -> Callable[[], Any]:
    """Return an endpoint that answers that the model does not support the route's task."""
    wanted, able = ('" or "'.join(words) for words in (tasks, sorted(server.tasks)))
    fix = "start the server with another model."
    if GENERATE in server.tasks and not {"transcription", "translation", SPEAK}.intersection(tasks):
        fix = "start the server with --runner pooling, or with another model."

    async def refuse() -> None:
        raise NotFound(
            f'{route.path} needs a model that can "{wanted}", and the served one can "{able}".',
            fix=fix,
            code="task_not_supported",
        )

    refuse.__doc__ = route.endpoint.__doc__
    return refuse


def open_route(app: FastAPI, endpoint: Callable[..., Any]) -> None:
    """Exempt a route's endpoint from the API key. Mutates: app"""
    app.state.open_endpoints.add(endpoint)
