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
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dovetail.errors import DovetailError, EngineDead, Overloaded, RequestError
from dovetail.observability.caller import CALLER, VISIT
from dovetail.server.http.errors import ClientDisconnected, ErrorBodies, problem_of
from dovetail.server.http.middleware import REQUEST_ID
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.model import GatewayModel, ModelState
from dovetail_plugins.gateway.progress import LoadProgress, empty_piece
from dovetail_plugins.gateway.routing import (
    KEEP_ALIVE_PATHS,
    OLLAMA_LINES,
    RequestFields,
    keep_alive_s,
    request_fields_of,
    stream_of,
)
from dovetail_plugins.gateway.server import OWNER_HEADER, Server
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
_SENT_ANEW = {b"content-length", REQUEST_ID.encode(), OWNER_HEADER.encode(), b"origin"}
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
        fields = request_fields_of(scope, body)
        has_started = False

        async def note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        disconnected = asyncio.ensure_future(_disconnected(receive))
        work = asyncio.ensure_future(self._answer(scope, body, fields, note))
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

    async def _answer(self, scope: Scope, body: bytes, fields: RequestFields, send: Send) -> None:
        model = await self._fleet.find(fields.model)
        if (visit := VISIT.get()) is not None:
            visit.check_model(model.name)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in KEEP_ALIVE_PATHS:
            model.keep_alive_s = keep_alive_s(fields.keep_alive)
            if fields.keep_alive is not None and model.keep_alive_s == 0 and fields.is_empty:
                await self._unload(model, fields, path, scope, send)
                return
        models = [model]
        if fields.model is None and not body:
            # An object id belongs to the model that created it, which is one of the loaded ones.
            models += [one for one in self._fleet.models[1:] if one.state is ModelState.LOADED]
        progress = LoadProgress(stream_of(path, fields), path, fields.model or model.name, send)
        for model in models:
            if await self._tried(model, scope, body, send, progress, is_last=model is models[-1]):
                return

    async def _unload(
        self, model: GatewayModel, fields: RequestFields, path: str, scope: Scope, send: Send
    ) -> None:
        """Unload a model once its requests have ended, and answer as Ollama does."""
        self._fleet.let_go(model)
        said = empty_piece(path, fields.model or model.name, done_reason="unload")
        await Response(said, media_type="application/json")(scope, _never, send)

    async def _tried(
        self,
        model: GatewayModel,
        scope: Scope,
        body: bytes,
        send: Send,
        progress: LoadProgress,
        *,
        is_last: bool,
    ) -> bool:
        """Forward a request; return whether it was answered. A 404 counts only for the last
        model."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                lease = stack.enter_async_context(self._fleet.lease(model))
                server = await progress.during(lease)
                answer = await stack.enter_async_context(_answer_of(server, scope, body))
            except (RequestError, EngineDead) as error:
                if not progress.has_begun:
                    raise
                await progress.fail(_last_event(scope, error))
                return True
            if answer.status == 404 and not is_last:
                return False
            await _pass_back(answer, scope, send, model, progress)
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
    if (caller := CALLER.get()) is not None and caller.owner:
        headers.append((OWNER_HEADER.encode(), caller.owner.encode()))
    return headers


async def _pass_back(
    answer: StreamedResponse,
    scope: Scope,
    send: Send,
    model: GatewayModel,
    progress: LoadProgress,
) -> None:
    """Send the answer to the client piece by piece."""
    dropped = OF_THE_CONNECTION | _RETURNED_ANEW
    headers = [(name, value) for name, value in answer.headers if name not in dropped]
    if progress.has_begun and answer.status != 200:
        body = b"".join([piece async for piece in answer.pieces()])
        await progress.fail(_as_last_event(scope, body))
        return
    if not progress.has_begun:
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except ConnectionError as error:
        logger.error("%s: its server ended within an answer: %s", model.name, error)
        if dict(headers).get(b"content-type", b"").startswith(EVENT_STREAM):
            last = _last_event(scope, EngineDead("the model's server ended within the answer."))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        return  # other answers stay incomplete, and the connection is closed
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _last_event(scope: Scope, error: DovetailError) -> bytes:
    """Return an error that ends a broken stream, in the format of the path's family."""
    found = problem_of(error)
    bodies: ErrorBodies = scope["state"]["error_bodies"]
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    own = bodies.body_of(path)
    body = (
        found.body() if own is None else own(found.status, found.info, scope["state"]["request_id"])
    )
    return _as_last_event(scope, body)


def _as_last_event(scope: Scope, body: bytes) -> bytes:
    """Return the body of an error as the end of a stream that has begun."""
    bodies: ErrorBodies = scope["state"]["error_bodies"]
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path in OLLAMA_LINES:
        return body + b"\n"
    if bodies.body_of(path) is None:
        return b"\n\ndata: " + body + b"\n\ndata: [DONE]\n\n"
    return b"\n\nevent: error\ndata: " + body + b"\n\n"


async def _never() -> Message:
    """Receive nothing: the body has been read."""
    return await asyncio.Future()
