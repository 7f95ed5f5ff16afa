"""The life of one API process: serve on a socket, watch the engine, drain on the first signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from fastapi import FastAPI

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.observability.supervise import supervised
from dovetail.server.launch.http_server import HttpServer, uvicorn_config
from dovetail.server.launch.sockets import port_taken
from dovetail.server.launch.tls import REFRESH_PERIOD_S, Tls, tls_of

logger = logging.getLogger("dovetail.server")

DRAIN_PERIOD_S = 0.05
"""How often a draining server checks whether requests are still running."""
HAND_OVER = signal.SIGUSR2
"""Asks a server to leave its socket to another process: it answers what it has, and ends."""
HAND_OVER_S = 2.0
"""How long it takes requests on connections that were open then."""
DEATH_NOTICE_S = 2.0
"""How long a server with a dead engine still answers 503, so that a load balancer notices."""

EXIT_ENGINE_DEAD = 1


class Served(Protocol):
    """What answers the requests: one engine, or several models."""

    @property
    def is_alive(self) -> bool:
        """Return whether any request can still be answered."""

    @property
    def death_reason(self) -> str | None:
        """Return why no request can be answered."""

    async def wait_end(self) -> None:
        """Return once no request can be answered any more."""

    async def shutdown(self) -> None:
        """End it, and everything that is running."""


class Doors(Protocol):
    """The counter of admitted requests: an `Admission` or similar."""

    num_inside: int
    is_draining: bool


class ServerLifecycle:
    """An API process from listening to its end. `run` returns the exit status."""

    def __init__(self, app: FastAPI, engine: Served, frontend: FrontendConfig) -> None:
        self._engine = engine
        self._frontend = frontend
        self._admission: Doors = app.state.server.admission
        self._tls = tls_of(frontend)
        self._server = HttpServer(uvicorn_config(app, frontend, self._tls))
        self._drain: asyncio.Task[None] | None = None
        self._status = 0
        # Objects made during start-up live forever. Exclude them from later collections, which
        # pause us; collect now, while the engine usually still loads.
        gc.collect()
        gc.freeze()

    async def run(self, sock: socket.socket, on_ready: Callable[[], None]) -> int:
        """Serve until a signal arrives. Raises: ConfigError if another process took the port"""
        self._watch_signals()
        tasks = [
            supervised("start", partial(self._tell_ready, on_ready)),
            supervised("engine-watch", self._watch_engine),
        ]
        if self._tls is not None and self._frontend.enable_ssl_refresh:
            tasks.append(supervised("tls-refresh", partial(_refresh, self._tls)))
        try:
            await self._server.serve(sockets=[sock])
        except OSError as error:
            raise port_taken(sock, error) from error
        finally:
            for task in (*tasks, *([self._drain] if self._drain else [])):
                task.cancel()
        return self._status

    def stop(self) -> None:
        """Start draining; a second call ends immediately."""
        if self._drain is None:
            self._drain = supervised("drain", self._drain_then_exit)
            return
        logger.warning("second signal: ending now")
        self._exit(is_forced=True)

    def hand_over(self) -> None:
        """Accept no more connections, answer all requests on open ones, and then drain."""
        if self._drain is None:
            self._server.stop_listening()
            self._drain = supervised("drain", self._answer_then_drain)

    async def _answer_then_drain(self) -> None:
        await asyncio.sleep(HAND_OVER_S)
        self._server.close_idle()
        await self._drain_then_exit()

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(HAND_OVER, self.hand_over)

    async def _tell_ready(self, on_ready: Callable[[], None]) -> None:
        await self._server.has_started.wait()
        gc.freeze()
        on_ready()

    async def _watch_engine(self) -> None:
        await self._engine.wait_end()
        if self._drain is not None and self._engine.death_reason is None:
            return
        logger.error("the engine is gone: %s", self._engine.death_reason or "unknown cause")
        self._status = EXIT_ENGINE_DEAD
        if self._frontend.keep_alive_on_engine_death:
            logger.warning(
                "the server keeps running without it because of --keep-alive-on-engine-death"
            )
            return
        await asyncio.sleep(DEATH_NOTICE_S)
        self._exit()

    async def _drain_then_exit(self) -> None:
        admission = self._admission
        admission.is_draining = True
        timeout_s = self._frontend.shutdown_timeout
        logger.info("stopping: %d running, waiting up to %g s", admission.num_inside, timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while admission.num_inside and self._engine.is_alive:
            if asyncio.get_running_loop().time() >= deadline_s:
                logger.warning("stopping: %d did not finish in time", admission.num_inside)
                await self._engine.shutdown()
                break
            await asyncio.sleep(DRAIN_PERIOD_S)
        self._exit()

    def _exit(self, *, is_forced: bool = False) -> None:
        self._server.should_exit = True
        self._server.force_exit |= is_forced


async def _refresh(tls: Tls) -> None:
    while True:
        await asyncio.sleep(REFRESH_PERIOD_S)
        tls.refresh()
