"""HttpServer: uvicorn without its timer and without its own signal handling.

The timer would wake an idle process ten times a second. `LimitedHttpProtocol` sets the Date header
instead, and an event says that the server is to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.http.access_log import silence
from dovetail.server.http.addresses import ANY, is_local_only
from dovetail.server.http.head_limits import limited_http_protocol
from dovetail.server.http.local_only import LocalOnly
from dovetail.server.launch.tls import Tls


class HttpServer(uvicorn.Server):
    """Serves until `should_exit` is set. `has_started` is set once it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._is_ending = asyncio.Event()
        self.has_started = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Return whether the server is to end."""
        return self._is_ending.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._is_ending.set()
        else:
            self._is_ending.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        self.has_started.set()

    def stop_listening(self) -> None:
        """Accept no more connections; answers ask clients to close those that are open."""
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append((b"connection", b"close"))

    def close_idle(self) -> None:
        """Close connections without a request, and others after their answer; not WebSockets."""
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpToolsProtocol):
                connection.shutdown()

    async def main_loop(self) -> None:
        """Wait until the server is to end."""
        await self._is_ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    def end_on_signals(self) -> None:
        """End on SIGTERM and SIGINT; a second SIGINT ends without waiting for requests."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.handle_exit, number, None)


def uvicorn_config(app: FastAPI, frontend: FrontendConfig, tls: Tls | None) -> uvicorn.Config:
    """Return uvicorn's settings. `observability.logging` sets the levels of its loggers."""
    protocol = limited_http_protocol(
        max_head_bytes=frontend.h11_max_incomplete_event_size,
        max_headers=frontend.h11_max_header_count,
        socket_paths=tuple(one.path for one in app.routes if isinstance(one, WebSocketRoute)),
    )
    served: ASGIApp = app
    if is_local_only(frontend):
        named = [origin for origin in frontend.allowed_origins if origin != ANY]
        served = LocalOnly(app, hosts=frontend.allowed_hosts, origins=named)
    config = uvicorn.Config(
        served,
        http=protocol,
        ws="auto",
        ws_per_message_deflate=False,  # a small message could become a large one
        lifespan="off",
        log_config=None,
        log_level=None,
        access_log=not frontend.disable_uvicorn_access_log,
        timeout_keep_alive=frontend.timeout_keep_alive,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    silence(frontend)
    config.load()
    config.ssl = None if tls is None else tls.context
    return config
