"""Caller: one POST to an ASGI application in this process, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI
from starlette.routing import Match
from starlette.types import Message, Scope

from dovetail.server.endpoint import as_owner

HOST = b"batch"


class Caller:
    """Calls the routes of one application like a client: with a key if they need one, and as the
    owner of the request."""

    def __init__(self, app: FastAPI, *, key: str = "", owner: str | None = None) -> None:
        self._app = app
        self._owner = owner
        self._extra = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._known: dict[str, bool] = {}

    def takes(self, path: str) -> bool:
        """Return whether a route answers POST at this path."""
        if path not in self._known and len(self._known) < 1024:
            self._known[path] = self._matches(path)
        return self._known.get(path) or self._matches(path)

    def _matches(self, path: str) -> bool:
        if not path.startswith("/"):
            return False
        routes = self._app.router.routes
        return any(route.matches(_scope(path, b"", ""))[0] is Match.FULL for route in routes)

    async def post(self, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        status = 0
        parts: list[bytes] = []

        async def receive() -> Message:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # this client never disconnects
            raise AssertionError

        async def keep(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        scope = _scope(path, body, request_id)
        scope["headers"] += self._extra
        if self._owner is not None:
            as_owner(scope, self._owner)
        await self._app(scope, receive, keep)
        return status, b"".join(parts)


def _scope(path: str, body: bytes, request_id: str) -> Scope:
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", HOST),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
    }
    return scope
