"""The middleware around every route: request id, counting, errors, API key.

Plain ASGI, outermost first: RequestIdMiddleware (id, counts), HeadMiddleware, ExceptionMiddleware,
the --middleware plugins (`user_middleware`), CORS, ExceptionMiddleware again, GateMiddleware,
BodyLimitMiddleware (`body_limits`). It is independent of the routes: open routes are a set of
endpoints, and for all others the gate may require a key.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.interfaces.gate import Gate
from dovetail.observability import metrics
from dovetail.observability.caller import note_caller
from dovetail.server.http.errors import ErrorBodies, Problem, problem, problem_of

logger = logging.getLogger("dovetail.server")
REQUEST_ID = "x-request-id"
MAX_REQUEST_ID_CHARS = 128
SOCKET = "WEBSOCKET"
"""The method of a WebSocket in routes and metrics."""
SOCKET_KEY = "openai-insecure-api-key."
"""What a WebSocket's subprotocol begins with that holds a key. Source: OpenAI's realtime API"""
STARTS = frozenset(("http.response.start", "websocket.http.response.start", "websocket.accept"))
"""The messages that begin an answer."""
_GOOD_ID = re.compile(rf"[\w.:-]{{1,{MAX_REQUEST_ID_CHARS}}}", re.ASCII)


@dataclass(slots=True, kw_only=True)
class OpenRequests:
    """The number of POST requests being answered, which are those that cause work."""

    count: int = 0


@dataclass(slots=True, kw_only=True)
class _Sent:
    """What has been sent in answer to one request so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class RequestIdMiddleware:
    """Gives every request an id, and counts requests.

    `root_path` is the prefix that a proxy adds to every path, stripped or not. `error_bodies` is
    passed to whatever answers with an error.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        shows_id: bool,
        open_requests: OpenRequests,
        error_bodies: ErrorBodies,
        root_path: str = "",
    ) -> None:
        self._app = app
        self._shows_id = shows_id
        self._open = open_requests
        self._error_bodies = error_bodies
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        state = scope.setdefault("state", {})
        state["request_id"], state["error_bodies"] = request_id, self._error_bodies
        if self._root_path:
            scope["root_path"] = self._root_path
        for word in scope.get("subprotocols", ()):  # browsers can put a key nowhere else
            if word.startswith(SOCKET_KEY):
                key = word.removeprefix(SOCKET_KEY).encode("utf-8", "surrogateescape")
                scope["headers"] = [*scope["headers"], (b"x-api-key", key)]
        note_caller(scope["path"], scope["headers"], request_id=request_id)
        sent = _Sent(headers={REQUEST_ID: request_id} if self._shows_id else {})
        start_s = time.monotonic()
        self._count(scope, 1)
        try:
            await self._app(scope, receive, _noting(send, sent))
        finally:
            self._count(scope, -1)
            _record(scope, sent, time.monotonic() - start_s)

    def _count(self, scope: Scope, change: int) -> None:
        if scope.get("method") == "POST":
            self._open.count += change
        metrics.OPEN_REQUESTS.inc(change)


def request_id_of(scope: Scope) -> str:
    """Return the client's own id if it is harmless, else a random one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _GOOD_ID.fullmatch(given) else secrets.token_hex(16)


def _noting(send: Send, sent: _Sent) -> Send:
    async def note(message: Message) -> None:
        if message["type"] in STARTS:
            sent.status = message.get("status", 101)
            extra = [(k.encode(), v.encode()) for k, v in sent.headers.items()]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return note


def _record(scope: Scope, sent: _Sent, seconds: float) -> None:
    path = getattr(scope.get("route"), "path", "none")
    metrics.HTTP_REQUESTS.labels(scope.get("method", SOCKET), path, str(sent.status or 499)).inc()
    metrics.HTTP_SECONDS.labels(path).observe(seconds)


class ExceptionMiddleware:
    """Turns unexpected exceptions into answers.

    It is added twice: inside CORS, without whose headers a browser would hide the error from its
    page, and around the user's middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = _Sent()
        try:
            await self._app(scope, receive, _noting(send, sent))
        except ClientDisconnect:
            problem = client_left(scope["state"]["request_id"])
            if not sent.status:
                await problem.response(scope)(scope, receive, send)
        except Exception as error:
            logger.error("request %s failed", scope["state"]["request_id"], exc_info=error)
            if not sent.status:
                await problem_of(error).response(scope)(scope, receive, send)


def client_left(request_id: str) -> Problem:
    """Record that a client hung up before its answer; return a response for the metrics only."""
    metrics.DISCONNECTS.inc()
    logger.info("request %s ended: the client left", request_id)
    return problem(499, "the client closed the request.")


class HeadMiddleware:
    """Answers HEAD as GET, without the body. Source: RFC 9110, section 9.3.2."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def leave_body_out(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, leave_body_out)


class GateMiddleware:
    """Lets the gate decide on every request (`interfaces.gate`)."""

    def __init__(self, app: ASGIApp, *, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self._gate.enter(self._app, scope, receive, send)


def is_open(
    scope: Scope, routes: Iterable[BaseRoute], open_endpoints: set[Callable[..., Any]]
) -> bool:
    """Return whether a request's route needs no key. It is decided by route, never by URL."""
    for route in routes:
        match, child = route.matches(dict(scope))
        if match is Match.FULL:
            return child.get("endpoint") in open_endpoints
    return False


def key_of(headers: Headers) -> str:
    """Return the key in a request's headers (either of the two); empty if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
