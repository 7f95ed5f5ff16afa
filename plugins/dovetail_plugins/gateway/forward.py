"""Forward: passes a request to its model's server, and streams the answer back.

Source of the hop-by-hop headers: RFC 9110, section 7.6.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from dovetail.errors import EngineDead, Overloaded
from dovetail.server.http.errors import ClientDisconnected, ErrorBodies, problem_of
from dovetail.server.http.middleware import REQUEST_ID
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.model import GatewayModel, ModelState
from dovetail_plugins.gateway.routing import named_model
from dovetail_plugins.gateway.server import Server
from dovetail_plugins.http_client.response import Header, StreamedResponse

logger = logging.getLogger("dovetail_plugins.gateway")
EVENT_STREAM = b"text/event-stream"
OF_THE_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
_SENT_ANEW = {b"content-length", REQUEST_ID.encode(), b"origin"}
"""Headers not forwarded unchanged to a model's server. The gateway alone decides whether an origin
may call."""

_RETURNED_ANEW = {b"date", b"server", REQUEST_ID.encode()}


class Forward:
    """An ASGI endpoint for every path that the gateway does not answer itself.

    `closed_paths` are the paths that only the gateway may request from models' servers.
    """

    def __init__(
        self, fleet: Fleet, closed_paths: Collection[str], is_draining: Callable[[], bool]
    ) -> None:
        self._fleet = fleet
        self._is_draining = is_draining
        self._closed = frozenset(closed_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises: RequestError, EngineDead,
        ClientDisconnected, HTTPException"""
        own_path = scope["path"].removeprefix(scope.get("root_path", ""))
        if own_path in self._closed:
            raise HTTPException(404)
        if self._is_draining():
            raise Overloaded("the server is shutting down.")
        body = await Request(scope, receive).body()
        name = named_model(scope, body)
        has_started = False

        async def note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        disconnected = asyncio.ensure_future(_disconnected(receive))
        work = asyncio.ensure_future(self._answer(scope, body, name, note))
        try:
            await asyncio.wait((disconnected, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            elif not has_started:
                raise ClientDisconnected
        finally:
            disconnected.cancel()
            work.cancel()
            await asyncio.gather(disconnected, work, return_exceptions=True)

    async def _answer(self, scope: Scope, body: bytes, name: str | None, send: Send) -> None:
        models = [self._fleet.find(name)]
        if name is None and not body:
            # An object id belongs to the model that created it, which is one of the loaded ones.
            models += [one for one in self._fleet.models[1:] if one.state is ModelState.LOADED]
        for model in models:
            if await self._tried(model, scope, body, send, is_last=model is models[-1]):
                return

    async def _tried(
        self, model: GatewayModel, scope: Scope, body: bytes, send: Send, *, is_last: bool
    ) -> bool:
        """Forward a request; return whether it was answered. A 404 counts only for the last
        model."""
        async with self._fleet.lease(model) as server, _answer_of(server, scope, body) as answer:
            if answer.status == 404 and not is_last:
                return False
            await _pass_back(answer, scope, send, model)
        return True


async def _disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


@contextlib.asynccontextmanager
async def _answer_of(server: Server, scope: Scope, body: bytes) -> AsyncIterator[StreamedResponse]:
    """Yield the server's answer once its headers have arrived; leaving early aborts the request."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    target = path + b"?" + query if query else path
    stream = server.connections.stream(scope["method"], target, _headers_on(scope), body)
    async with contextlib.AsyncExitStack() as stack:
        try:
            answer = await stack.enter_async_context(stream)
        except ConnectionError as error:
            raise EngineDead(
                f"the model's server ended before it answered ({error}).",
                fix="try again: it is started anew.",
            ) from error
        yield answer


def _headers_on(scope: Scope) -> list[Header]:
    """Return the request's headers for the model's server."""
    dropped = OF_THE_CONNECTION | _SENT_ANEW
    headers = [(name, value) for name, value in scope["headers"] if name not in dropped]
    headers.append((REQUEST_ID.encode(), scope["state"]["request_id"].encode()))
    return headers


async def _pass_back(
    answer: StreamedResponse, scope: Scope, send: Send, model: GatewayModel
) -> None:
    """Send the answer to the client piece by piece."""
    dropped = OF_THE_CONNECTION | _RETURNED_ANEW
    headers = [(name, value) for name, value in answer.headers if name not in dropped]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionError as error:
        logger.error("%s: its server ended within an answer: %s", model.name, error)
        if dict(headers).get(b"content-type", b"").startswith(EVENT_STREAM):
            last = _last_event(scope)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        return  # other answers stay incomplete, and the connection is closed
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _last_event(scope: Scope) -> bytes:
    """Return an error event that ends a broken stream, in the format of the path's family."""
    found = problem_of(EngineDead("the model's server ended within the answer."))
    bodies: ErrorBodies = scope["state"]["error_bodies"]
    own = bodies.body_of(scope["path"].removeprefix(scope.get("root_path", "")))
    if own is None:
        return b"\n\ndata: " + found.body() + b"\n\ndata: [DONE]\n\n"
    error = own(found.status, found.info, scope["state"]["request_id"])
    return b"\n\nevent: error\ndata: " + error + b"\n\n"
