"""FakeServer: serves the page's own files and answers its requests as a gateway does, without a
model. Tests change its state, and read what was sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dovetail.config.sections.frontend import FrontendConfig
from dovetail_plugins.gateway.page import page_routes

MIB = 2**20


@dataclass(slots=True)
class FakeServer:
    """`models` are cards of /v1/models; `refused` has, for a path, the status and body with which
    it is refused; `requests` are the bodies that were sent, as (path, body)."""

    url: str = ""
    models: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    requests: list[tuple[str, Any]] = field(default_factory=list)
    manager_key: str = ""
    is_pulling: bool = False
    pull_stays: bool = False
    """A pull stays at its half until its client leaves."""
    is_slow: bool = False
    """Models are loaded and unloaded once this is False again."""
    pieces: int = 5
    """Of an answer; -1: it never ends."""
    comments: tuple[str, ...] = ()
    """What a stream begins with while its model is loaded."""
    hold: threading.Event = field(default_factory=threading.Event)
    """Set: streams go on after their comments."""
    running: set[str] = field(default_factory=set)

    def card(self, name: str) -> dict[str, Any]:
        """Return a model's card."""
        return next(card for card in self.models if card["id"] == name)

    def bodies(self, path: str) -> list[Any]:
        """Return the bodies sent to a path."""
        return [body for other, body in self.requests if other == path]

    async def answer(self, request: Request) -> Response:
        """Answer a request that is not for the page's files."""
        path = request.url.path
        body = json.loads(await request.body() or b"null")
        if request.method != "GET":
            self.requests.append((path, body))
        needed = self.manager_key if path.startswith(("/models/", "/api/")) else ""
        if needed and request.headers.get("authorization") != f"Bearer {needed}":
            return JSONResponse({"error": {"message": "a key is needed."}}, status_code=401)
        if path in self.refused:
            status, content = self.refused[path]
            return JSONResponse(content, status_code=status)
        routes = {
            "/v1/models": lambda: JSONResponse({"data": self.models}),
            "/api/pull": lambda: StreamingResponse(self._pulled(body), media_type="application/x"),
            "/api/delete": lambda: self._deleted(body["model"]),
            "/v1/chat/completions": lambda: StreamingResponse(
                self._events(body), media_type="text/event-stream"
            ),
        }
        if path in ("/models/load", "/models/unload"):
            return await self._moved(body["model"], path.endswith("/load"))
        if path not in routes:
            error = {"message": f"{path} is unknown.", "code": "unknown_path"}
            return JSONResponse({"error": error}, status_code=404)
        return routes[path]()

    async def _moved(self, name: str, is_load: bool) -> Response:
        card = self.card(name)
        card["state"] = "loading" if is_load else "leaving"
        while self.is_slow:
            await asyncio.sleep(0.02)
        card["state"] = "loaded" if is_load else "unloaded"
        return JSONResponse({"model": name, "state": card["state"]})

    def _deleted(self, name: str) -> Response:
        self.models = [card for card in self.models if card["id"] != name]
        return JSONResponse({})

    async def _pulled(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self.is_pulling = True
        try:
            yield b'{"status": "pulling manifest"}\n'
            for done in (0, 1):
                line = {"status": "pulling a", "digest": "a", "total": 4 * MIB}
                yield json.dumps(line | {"completed": done * 2 * MIB}).encode() + b"\n"
                await asyncio.sleep(0.05)
            while self.pull_stays:
                await asyncio.sleep(0.02)
                yield b"\n"
            self.models.append({"id": body["model"], "state": "unloaded", "size_bytes": 4 * MIB})
            yield b'{"status": "success"}'
        finally:
            self.is_pulling = False

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        name = body["model"]
        self.running.add(name)
        try:
            for comment in self.comments:
                yield f": {comment}\n\n"
            while self.comments and not self.hold.is_set():
                await asyncio.sleep(0.02)
            num = 0
            while num != self.pieces:
                num += 1
                chunk = {"choices": [{"index": 0, "delta": {"content": f"{num} "}}]}
                usage = {"prompt_tokens": 4, "completion_tokens": num}
                yield f"data: {json.dumps(chunk | {'usage': usage})}\n\n"
                await asyncio.sleep(0.03)
            yield "data: [DONE]\n\n"
        finally:
            self.running.discard(name)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """Give a server that listens on a free port of 127.0.0.1."""
    state = FakeServer()
    app = FastAPI()
    for path, endpoint in page_routes(FrontendConfig()).items():
        app.add_route(path, endpoint)
    app.add_route("/{path:path}", state.answer, methods=["GET", "POST", "DELETE"])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline_s = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline_s:
            time.sleep(0.02)
        host, port = server.servers[0].sockets[0].getsockname()
        state.url = f"http://{host}:{port}"
        yield state
    finally:
        server.should_exit = True
        state.pull_stays, state.is_slow, state.pieces = False, False, 0
        state.hold.set()
        with contextlib.suppress(RuntimeError):
            thread.join(5)
