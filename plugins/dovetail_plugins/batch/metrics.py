"""Serves a single path of an application on a socket, /metrics, while a batch runs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dovetail.observability.supervise import supervised

PATH = "/metrics"


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: a signal ends the batch."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, sock: socket.socket) -> AsyncIterator[None]:
    """Answer GET /metrics on `sock` during the block."""
    config = uvicorn.Config(
        _only_metrics(app), ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = _Uvicorn(config)
    task = supervised("metrics", partial(server.serve, sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def _only_metrics(app: ASGIApp) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH:
            await app(scope, receive, send)
        else:
            await PlainTextResponse("only /metrics\n", 404)(scope, receive, send)

    return answer
