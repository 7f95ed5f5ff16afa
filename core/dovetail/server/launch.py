"""run(config): resolve, bind, start the engine and the HTTP servers, and return the exit status.

With one API process everything but the engine lives here; with several, `fleet` starts them.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Coroutine
from typing import Any

from dovetail.config.engine import Config
from dovetail.config.log_config import read_log_config
from dovetail.config.resolve import resolve
from dovetail.interfaces.spec import EngineSpec
from dovetail.observability import logging as log_setup
from dovetail.server.checks import check_frontend
from dovetail.server.listen import listening
from dovetail.server.mcp import connected
from dovetail.server.phases import Phases
from dovetail.server.start import max_queued, start_engine, tell_ready

logger = logging.getLogger("dovetail.server")
EXIT_STOPPED = 143
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def run(config: Config) -> int:
    """Serve until told to stop. Raises: ConfigError for what cannot be started."""
    log_setup.configure(
        config.observability.log_level,
        uvicorn_level=config.frontend.uvicorn_log_level,
        config=read_log_config(config.observability.log_config_file),
        prefix=config.observability.log_prefix,
        is_wanted=config.observability.configure_logging,
    )
    phases = Phases()
    logger.info("start: imports took %.2f s", phases.durations_s["imports"])
    with phases.time("config"):
        check_frontend(config.frontend)
        spec = resolve(config)
    with listening(config.frontend) as sock:
        if config.frontend.api_server_count > 1:
            return _run_fleet(config, spec, sock, phases)
        return run_loop(_run_one(config, spec, sock, phases))


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on uvloop and return its status."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(main))


async def _until_stopped(main: Coroutine[Any, Any, int]) -> int:
    """Run `main`, ended in order by a signal that comes before it watches them itself."""
    task = asyncio.ensure_future(main)
    got: list[int] = []

    def stop(number: int) -> None:
        got.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not got:
            raise
        logger.warning("stopped while starting, by %s", signal.Signals(got[0]).name)
        return EXIT_STOPPED


async def _run_one(config: Config, spec: EngineSpec, sock: socket.socket, phases: Phases) -> int:
    # The application's imports take a second that the engine process needs for its own.
    imports = asyncio.get_running_loop().run_in_executor(None, _import_application)
    tool_servers = await connected(config.frontend.tool_server)
    engine = await start_engine(config, spec, phases)
    try:
        with phases.time("application"):
            await imports
            from dovetail.server.app import build_app, build_renderer
            from dovetail.server.life import Life
            from dovetail.server.parsers import build_parsers, choose_parsers

            renderer = build_renderer(engine, config.frontend)
            app = build_app(
                engine,
                config.frontend,
                parsers=build_parsers(choose_parsers(config, renderer.source)),
                max_queued_requests=max_queued(config, spec),
                renderer=renderer,
                tool_servers=tool_servers,
            )
        life = Life(app, engine, config.frontend)
        return await life.run(sock, lambda: tell_ready(config, spec, sock, phases))
    finally:
        await engine.shutdown()


def _import_application() -> None:
    importlib.import_module("dovetail.server.app")
    importlib.import_module("dovetail.server.life")


def _run_fleet(config: Config, spec: EngineSpec, sock: socket.socket, phases: Phases) -> int:
    """Run several API processes. Their metrics meet in a private folder, removed at the end."""
    folder = tempfile.mkdtemp(prefix="dovetail-metrics-")
    # prometheus_client decides at import how it keeps numbers, so this precedes its import.
    os.environ[METRICS_VARIABLE] = folder
    try:
        from dovetail.server import fleet

        return run_loop(fleet.run(config, spec, sock, phases))
    finally:
        os.environ.pop(METRICS_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
