"""The start-up steps shared by one API process and several.

Imports the engine and the metrics only when needed: prometheus_client decides how it stores numbers
at its first import.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from dovetail.config.config import Config
from dovetail.config.rules.parallel.joining import check_serves, remote_engines_class
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.engine_starter import RemoteEngines
from dovetail.server.launch.records import write_record
from dovetail.server.launch.sockets import url_of
from dovetail.server.launch.startup_timer import StartupTimer

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.engine.client.host import EngineHost

logger = logging.getLogger("dovetail.server")

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The folder that several API processes share for their metrics."""


def max_queued(config: Config, spec: EngineSpec) -> int:
    """Return how many requests may wait: by default four times the engines' rows."""
    return config.scheduler.max_num_queued_reqs or 4 * spec.total_rows


@contextlib.asynccontextmanager
async def starting_engine(
    config: Config,
    spec: EngineSpec,
    timer: StartupTimer,
    prepared: Callable[[AsyncEngine], None] = lambda _: None,
) -> AsyncIterator[asyncio.Task[AsyncEngine]]:
    """Yield the engine's start as a task, so that the block can prepare everything else meanwhile.
    The engine ends with the block, started or not. `prepared`: as for AsyncEngine.start. Raises
    (the task): as AsyncEngine.start"""
    check_serves(config.parallel)
    with contextlib.ExitStack() as stack:
        elsewhere = _elsewhere(config, spec)
        if elsewhere is not None:
            stack.enter_context(elsewhere)
        task = asyncio.ensure_future(_start_engine(config, spec, timer, elsewhere, prepared))
        try:
            yield task
        finally:
            task.cancel()
            if elsewhere is not None:
                elsewhere.end_wait()
            (engine,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(engine, BaseException):
                await engine.shutdown()


def _elsewhere(config: Config, spec: EngineSpec) -> RemoteEngines | None:
    """Return the engines on other machines, if any are configured. Raises: ConfigError"""
    if not spec.elsewhere:
        return None
    count = config.frontend.api_server_count
    return remote_engines_class()(config, spec, num_processes=count if count > 1 else 0)


async def _start_engine(
    config: Config,
    spec: EngineSpec,
    timer: StartupTimer,
    others: RemoteEngines | None,
    prepared: Callable[[AsyncEngine], None],
) -> AsyncEngine:
    """Return the started engine; its phases are recorded. Raises: as AsyncEngine.start"""
    from dovetail.engine.client.async_engine import AsyncEngine

    elsewhere: Sequence[EngineHost] = ()
    if others is not None:
        with timer.time("engines of other machines"):
            elsewhere = await asyncio.get_running_loop().run_in_executor(None, others.wait)

    in_process = config.frontend.disable_frontend_multiprocessing
    # With several API processes each has its own compiler. With a single process it is built on
    # demand.
    prepares = not in_process and config.frontend.api_server_count == 1
    with timer.time("engine"):
        engine = await AsyncEngine.start(
            spec,
            in_process=in_process,
            prepares=prepares,
            elsewhere=elsewhere,
            prepared=prepared,
        )
    if others is not None:
        loop = asyncio.get_running_loop()
        others.admit(lambda number, host: loop.call_soon_threadsafe(engine.join, number, host))
    timer.note_parts("engine", ((phase.name, phase.duration_s) for phase in engine.phases))
    return engine


def tell_ready(config: Config, spec: EngineSpec, sock: socket.socket, timer: StartupTimer) -> None:
    """Log the line with the server's address, export the phases, and write a record for `dovetail
    ps`."""
    from dovetail.observability import metrics

    for name, duration_s in timer.durations_s.items():
        metrics.START_SECONDS.labels(name).set(duration_s)
        metrics.START_BEGAN_SECONDS.labels(name).set(timer.began_s[name])
    names = ", ".join(spec.served_names)
    logger.info("serving %s", names)
    if config.frontend.host is None and config.frontend.uds is None:
        logger.info("only programs on this machine reach it; --host 0.0.0.0 lets others in")
    url = url_of(sock, has_tls=config.frontend.ssl_certfile is not None)
    write_record(url, spec.served_names, spec.run.model.path)
    logger.info("ready in %.1f s at %s", timer.total_s(), url)
