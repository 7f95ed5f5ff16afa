"""build_app: routes, middleware and error handlers around one engine.

Knows no process, socket or signal: `launch` does. Tests call it with a fake engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from dovetail.config.chat_template import load_template
from dovetail.config.engine import flags
from dovetail.config.frontend import FrontendConfig
from dovetail.errors import DovetailError
from dovetail.observability import metrics
from dovetail.registry import hooks
from dovetail.server.api.admin import server_info as dev
from dovetail.server.api.admin import sleep as rest
from dovetail.server.api.chat import routes as chat
from dovetail.server.api.completions import routes as completions
from dovetail.server.api.health import routes as health
from dovetail.server.api.messages import routes as messages
from dovetail.server.api.models import routes as models
from dovetail.server.api.parse import routes as parse
from dovetail.server.api.responses import routes as responses
from dovetail.server.api.responses.mcp import McpServer
from dovetail.server.api.tokenize import routes as tokenize
from dovetail.server.generate.generation import CLAMPED_HEADER
from dovetail.server.generate.ignored_fields import HEADER
from dovetail.server.generate.server_state import Parsers, build_server
from dovetail.server.generate.streaming import ClientDisconnected
from dovetail.server.generate.template.chat import ChatRenderer
from dovetail.server.http.errors import problem, problem_of
from dovetail.server.http.middleware import (
    REQUEST_ID,
    ApiKeyMiddleware,
    BodyLimitMiddleware,
    ExceptionMiddleware,
    OpenRequests,
    RequestIdMiddleware,
)
from dovetail.server.http.not_found import not_found
from dovetail.server.http.user_middleware import add_middleware
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.engine.async_engine import AsyncEngine

logger = logging.getLogger("dovetail.server")

ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", "/v1/chat/completions", chat.create_chat_completion),
    ("POST", "/v1/completions", completions.create_completion),
    ("POST", "/v1/responses", responses.create_response),
    ("GET", "/v1/responses/{response_id}", responses.get_response),
    ("DELETE", "/v1/responses/{response_id}", responses.delete_response),
    ("POST", "/v1/responses/{response_id}/cancel", responses.cancel_response),
    ("POST", "/v1/messages", messages.create_message),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/{model_id:path}", models.show_model),
    ("POST", "/v1/parse", parse.parse_text),
    ("POST", "/tokenize", tokenize.tokenize),
    ("POST", "/detokenize", tokenize.detokenize),
    ("GET", "/health", health.health),
    ("GET", "/live", health.live),
    ("GET", "/ready", health.ready),
    ("GET", "/ping", health.ping),
    ("POST", "/ping", health.ping),
    ("GET", "/version", health.version),
    ("GET", "/load", health.load),
    ("GET", "/metrics", health.show_metrics),
)

FLAG_ROUTES: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    (
        "enable_tokenizer_info_endpoint",
        "GET",
        "/get_tokenizer_info",
        tokenize.get_tokenizer_info,
    ),
    ("enable_dev_endpoints", "POST", "/reset_prefix_cache", dev.reset_prefix_cache),
    ("enable_dev_endpoints", "GET", "/server_info", dev.server_info),
    ("enable_dev_endpoints", "POST", "/sleep", rest.sleep),
    ("enable_dev_endpoints", "POST", "/wake_up", rest.wake_up),
    ("enable_dev_endpoints", "GET", "/is_sleeping", rest.is_sleeping),
)
"""Routes that are there only with a flag: its field, then as in ROUTES."""

_FLAGS = {path: flags()[name].spelling for name, _, path, _ in FLAG_ROUTES}

OPEN_ENDPOINTS = frozenset({health.health, health.live, health.ready, health.ping})
"""What answers without a key when keys are set. Everything else is closed."""


def build_app(
    engine: AsyncEngine,
    frontend: FrontendConfig,
    *,
    parsers: Parsers | None = None,
    max_queued_requests: int | None = None,
    renderer: ChatRenderer | None = None,
    tool_servers: Sequence[McpServer] = (),
) -> FastAPI:
    """Return the application. Raises: ConfigError for a template or middleware of no use."""
    has_docs = not frontend.disable_fastapi_docs
    app = FastAPI(
        title="dovetail",
        version=__version__,
        docs_url="/docs" if has_docs else None,
        redoc_url="/redoc" if has_docs else None,
        openapi_url="/openapi.json" if has_docs else None,
    )
    app.state.server = build_server(
        engine,
        frontend,
        renderer or build_renderer(engine, frontend),
        parsers or Parsers(),
        max_queued_requests,
        tool_servers,
    )
    app.state.open_requests = OpenRequests()
    app.state.open_endpoints = set(OPEN_ENDPOINTS)
    asked = [route[1:] for route in FLAG_ROUTES if getattr(frontend, route[0])]
    for method, path, endpoint in (*ROUTES, *asked):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    _add_hook_routes(app, engine)
    _add_handlers(app)
    _add_middleware(app, frontend)
    return app


def open_route(app: FastAPI, endpoint: Callable[..., Any]) -> None:
    """Let a route's endpoint answer without a key. Mutates: app"""
    app.state.open_endpoints.add(endpoint)


def build_renderer(engine: AsyncEngine, frontend: FrontendConfig) -> ChatRenderer:
    """Return the renderer for the engine's tokenizer. Raises: ConfigError"""
    return ChatRenderer(
        engine.tokenizer.facts(),
        override=load_template(frontend.chat_template),
        content_format=frontend.chat_template_content_format,
    )


def _add_hook_routes(app: FastAPI, engine: AsyncEngine) -> None:
    if engine.spec.hooks:
        manager = hooks.manager_of(engine.spec.hooks)
        hooks.tell(hooks.add_routes, {"app": app}, using=manager)


def _add_handlers(app: FastAPI) -> None:
    for kind in (DovetailError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientDisconnected, _answer_gone)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        found = not_found(error, request.scope, _FLAGS)
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
    metrics.DISCONNECTS.inc()
    logger.info("request %s ended: the client left", request.state.request_id)
    return problem(499, "the client closed the request.").response()


def _add_middleware(app: FastAPI, frontend: FrontendConfig) -> None:
    """Add layers, innermost first. Mutates: app"""
    app.add_middleware(BodyLimitMiddleware, max_bytes=frontend.max_body_bytes)
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
    app.add_middleware(
        RequestIdMiddleware,
        shows_id=frontend.enable_request_id_headers,
        open_requests=app.state.open_requests,
        root_path=(frontend.root_path or "").rstrip("/"),
    )
