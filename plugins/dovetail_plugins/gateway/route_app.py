"""build_route: `dovetail route` as an application, inside the front door of a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.routing import Route

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.api import Api
from dovetail.server.generate.body.ignored_fields import HEADER
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.http.front_door import add_front_door
from dovetail.server.http.middleware import OpenRequests
from dovetail_plugins.gateway.disaggregated import HEALTH, PREFILL_HEADER, DisaggregatedRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteState:
    """The application state that the front door reads."""

    frontend: FrontendConfig


def build_route(
    router: DisaggregatedRouter, frontend: FrontendConfig, apis: Iterable[Api]
) -> FastAPI:
    """Return the application: `/health`, which needs no key, and a catch-all route. `apis` are its
    servers' families."""
    app = FastAPI(title="dovetail", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = RouteState(frontend=frontend)
    app.state.open_requests = OpenRequests()
    app.state.open_endpoints = {router.health}
    app.state.flags_by_path = dict[str, str]()
    for path in (HEALTH, f"/v1{HEALTH}"):
        app.router.routes.append(Route(path, router.health, methods=["GET"]))
    app.router.routes.append(Route("/{path:path}", router))
    add_front_door(
        app,
        frontend,
        list(apis),
        is_busy=lambda: router.is_busy,
        shown_headers=(HEADER, CLAMPED_HEADER, PREFILL_HEADER.decode()),
    )
    return app
