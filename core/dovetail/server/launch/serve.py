"""run(config): bind, resolve, start the engine and the HTTP servers, and return the exit status.

A single API process lives here, without the engine; `api_processes` starts several.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.imports import large_imports
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.observability.configured_log import set_log_up
from dovetail.server.families import choose_apis
from dovetail.server.http.addresses import ANY
from dovetail.server.launch.engine_start import (
    METRICS_VARIABLE,
    max_queued,
    starting_engine,
    tell_ready,
)
from dovetail.server.launch.event_loop import run_loop
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail.server.launch.records import record_removed
from dovetail.server.launch.sockets import listening
from dovetail.server.launch.startup_timer import StartupTimer

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

logger = logging.getLogger("dovetail.server")
EXIT_STOPPED = 143


def run(config: Config) -> int:
    """Serve until a signal arrives. Raises: ConfigError if the server cannot be started"""
    if config.frontend.api_server_count == 1:
        return _run(config)
    with _shared_metrics():
        return _run(config)


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """Collect the metrics of several API processes in a private folder, removed at the end.

    prometheus_client decides at its import how it stores numbers, and any configured plugin may
    import it. Set too late, the parent's numbers (the engine's) would have no file.
    """
    folder = tempfile.mkdtemp(prefix="dovetail-metrics-")
    os.environ[METRICS_VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(METRICS_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)


def _run(config: Config) -> int:
    set_process_up(config)
    timer = StartupTimer()
    logger.info("start: imports took %.2f s", timer.durations_s["imports"])
    config = with_checked_frontend(config)
    with record_removed(), listening(config.frontend) as sock:
        with timer.time("config"):
            apis = choose_apis(config)
            spec = resolve(config)
        if config.frontend.api_server_count > 1:
            from dovetail.server.launch import api_processes

            main = api_processes.run(config, spec, apis, sock, timer)
            return run_loop(main, stopped_while_starting)
        return run_loop(_run_one(config, spec, apis, sock, timer), stopped_while_starting)


def set_process_up(config: Config) -> None:
    """Set up what exists once per process: loggers and environment variables. Raises:
    ConfigError"""
    set_log_up(config, has_uvicorn=True)
    # Texts are tokenized one at a time, and a thread pool would not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def with_checked_frontend(config: Config) -> Config:
    """Return the config with the hosts implied by its origins. Raises: ConfigError"""
    check_frontend(config.frontend)
    if config.is_given("allowed_origins") and ANY in config.frontend.allowed_origins:
        return config.with_fields({"allowed_hosts": [ANY]})  # the default "*" does not imply this
    return config


def stopped_while_starting(by: signal.Signals) -> int:
    """Log a signal that arrived before the server listened; return the exit status."""
    logger.warning("stopped while starting, by %s", by.name)
    return EXIT_STOPPED


async def _run_one(
    config: Config,
    spec: EngineSpec,
    apis: tuple[Selection, ...],
    sock: socket.socket,
    timer: StartupTimer,
) -> int:
    loop = asyncio.get_running_loop()
    prepared: asyncio.Future[AsyncEngine] = loop.create_future()
    async with starting_engine(config, spec, timer, prepared.set_result) as starting:
        # Importing and building the application takes a second; the engine process loads meanwhile.
        await loop.run_in_executor(None, _import_application)
        from dovetail.server.app import build_app
        from dovetail.server.families import build_apis, opened_apis
        from dovetail.server.generate.rendering.building import build_renderer
        from dovetail.server.generate.tools.parsers import build_parsers, choose_parsers
        from dovetail.server.launch.lifecycle import ServerLifecycle
        from dovetail.server.launch.settings import settings_in_force

        async with opened_apis(build_apis(apis), config.frontend) as opened:
            await asyncio.wait([prepared, starting], return_when=asyncio.FIRST_COMPLETED)
            engine = prepared.result() if prepared.done() else await starting
            with timer.time("application"):
                options = config.plugin.options_of("renderer")
                renderer = build_renderer(engine, config.frontend, options=options)
                parsers = choose_parsers(config, renderer.source)
                app = build_app(
                    engine,
                    config.frontend,
                    opened,
                    parsers=build_parsers(parsers, engine.tokenizer),
                    max_queued_requests=max_queued(config, spec),
                    renderer=renderer,
                    in_force=settings_in_force(config, spec, engine, renderer, parsers, apis),
                )
            life = ServerLifecycle(app, engine, config.frontend)
            async with contextlib.aclosing(app.state.server):
                await starting
                return await life.run(sock, lambda: tell_ready(config, spec, sock, timer))


def _import_application() -> None:
    with large_imports():
        importlib.import_module("dovetail.server.app")
        importlib.import_module("dovetail.server.launch.lifecycle")
        importlib.import_module("dovetail.server.launch.settings")
