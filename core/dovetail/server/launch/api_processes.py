"""Several API processes on one socket and one engine: the parent's side.

The parent owns the engine and the socket but answers no request. If a child exits on its own, the
parent stops everything, so that a supervisor sees one clear exit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

import msgspec

from dovetail.config.config import Config
from dovetail.config.report.in_force import InForce
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.ipc.socket_ends import descriptor_of
from dovetail.errors import DovetailError
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.processes.process import Child, spawn
from dovetail.server.families import build_apis, opened_apis
from dovetail.server.generate.rendering.building import build_renderer
from dovetail.server.generate.tools.parsers import ParserChoice, choose_parsers
from dovetail.server.launch.beats import Beats
from dovetail.server.launch.engine_start import (
    METRICS_VARIABLE,
    max_queued,
    starting_engine,
    tell_ready,
)
from dovetail.server.launch.lifecycle import HAND_OVER
from dovetail.server.launch.settings import settings_in_force
from dovetail.server.launch.startup_timer import StartupTimer

logger = logging.getLogger("dovetail.server")
LOOK_PERIOD_S = 1.0
"""How often the parent reads its children's beats. Signals and child exits wake it immediately."""
GRACE_S = 5.0
START_LIMIT_S = 120.0


class ChildBoot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of an API process."""

    spec: EngineSpec
    frontend: FrontendConfig
    renderer: Selection
    parsers: ParserChoice
    apis: tuple[Selection, ...] = ()
    in_force: InForce | None = None
    addresses: tuple[str, ...]
    process: int
    socket_fd: int
    max_queued: int


async def run(
    config: Config,
    spec: EngineSpec,
    apis: tuple[Selection, ...],
    sock: socket.socket,
    timer: StartupTimer,
) -> int:
    """Run the engine and the children until a signal arrives; return the exit status."""
    async with starting_engine(config, spec, timer) as starting:
        async with opened_apis(build_apis(apis), config.frontend):
            pass  # a bad state is reported here, once, instead of by every child
        engine = await starting
        children: list[Child] = []
        watchers: list[threading.Thread] = []
        news = _signals()
        try:
            for boot in _boots(config, spec, apis, sock, engine):
                children.append(_spawn(boot, sock))
                watchers.append(children[-1].on_exit(_teller(news)))
            engine.hand_over()
            await _wait_started(children)
            tell_ready(config, spec, sock, timer)
            beats = Beats(children, spec.step_timeout_s)
            return await _watch(children, engine, news, beats, config.frontend.shutdown_timeout)
        finally:
            _end(children)
            for watcher in watchers:
                watcher.join()


def _boots(
    config: Config,
    spec: EngineSpec,
    apis: tuple[Selection, ...],
    sock: socket.socket,
    engine: AsyncEngine,
) -> list[ChildBoot]:
    count = config.frontend.api_server_count
    queue = max_queued(config, spec)
    options = config.plugin.options_of("renderer")
    renderer = build_renderer(engine, config.frontend, options=options)
    parsers = choose_parsers(config, renderer.source)
    in_force = settings_in_force(config, spec, engine, renderer, parsers, apis)
    return [
        ChildBoot(
            spec=spec,
            frontend=config.frontend,
            renderer=renderer.selection,
            parsers=parsers,
            apis=apis,
            in_force=in_force,
            addresses=engine.addresses_for(process),
            process=process,
            socket_fd=sock.fileno(),
            max_queued=max(1, queue // count),
        )
        for process in range(count)
    ]


def _spawn(boot: ChildBoot, sock: socket.socket) -> Child:
    inherited = [descriptor_of(address) for address in boot.addresses]
    metrics = os.environ.get(METRICS_VARIABLE)
    return spawn(
        "dovetail.server.launch.api_process",
        boot,
        stdout=None,  # a log configuration may send lines there
        pass_fds=[sock.fileno(), *(number for number in inherited if number is not None)],
        leftovers=[metrics] if metrics else [],
        has_channel=True,
        has_own_group=True,
    )


async def _wait_started(children: list[Child]) -> None:
    """Wait until every child reports that it listens. Raises: DovetailError"""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(START_LIMIT_S):
        for child in children:
            assert child.channel is not None
            child.channel.setblocking(False)
            if not await _received(loop, child.channel):
                raise DovetailError(
                    "a server process ended while starting.",
                    fix="see the log lines above; if they name no cause, memory may have run "
                    "out: lower --api-server-count.",
                )


async def _received(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> bytes:
    """Return the first byte; empty if the other side closed or reset the connection."""
    try:
        return await loop.sock_recv(channel, 1)
    except ConnectionError:
        return b""


_News = asyncio.Queue[int]
"""What wakes the parent: a signal number, or NO_SIGNAL when a child has exited."""
NO_SIGNAL = 0


def _signals() -> _News:
    """Return a queue that receives every signal to end."""
    news: _News = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, HAND_OVER):
        asyncio.get_running_loop().add_signal_handler(number, news.put_nowait, number)
    return news


def _teller(news: _News) -> Callable[[int], None]:
    """Return the callback for the watcher threads: it reports that a child has exited."""
    loop = asyncio.get_running_loop()

    def tell(_: int) -> None:
        loop.call_soon_threadsafe(news.put_nowait, NO_SIGNAL)

    return tell


async def _next(news: _News) -> int:
    """Return the next signal, or NO_SIGNAL if a child exited or LOOK_PERIOD_S passed."""
    try:
        async with asyncio.timeout(LOOK_PERIOD_S):
            return await news.get()
    except TimeoutError:
        return NO_SIGNAL


async def _watch(
    children: list[Child],
    engine: AsyncEngine,
    news: _News,
    beats: Beats,
    timeout_s: float,
) -> int:
    """Wait for the end: 0 if all children exited after a signal, 1 after a failure."""
    loop = asyncio.get_running_loop()
    deadline_s: float | None = None
    while True:
        if (number := await _next(news)) != NO_SIGNAL:
            deadline_s = deadline_s or loop.time() + timeout_s + GRACE_S
            _signal(children, HAND_OVER if number == HAND_OVER else signal.SIGTERM)
        statuses = [child.status for child in children if child.status is not None]
        if len(statuses) == len(children):
            return 0 if deadline_s and not any(statuses) else 1
        if deadline_s is None and statuses and engine.is_alive:
            logger.error("a server process ended with status %d: stopping", statuses[0])
            return 1
        beat = beats.read()
        engine.give_up(beat.given_up)
        engine.start_wanted(beat.wanted)
        beats.answer(engine.lives)
        if deadline_s is None and engine.is_alive and (silence := beats.silence()):
            logger.error("%s: stopping", silence)
            return 1
        if deadline_s is not None and loop.time() > deadline_s:
            logger.warning("%d server processes did not end in time", len(children) - len(statuses))
            return 1


def _signal(children: list[Child], number: int) -> None:
    for child in children:
        child.send_signal(number)


def _end(children: list[Child]) -> None:
    """Close every parent pipe, which makes the children exit, and wait for them."""
    for child in children:
        child.close_parent_pipe()
    for child in children:
        child.end(GRACE_S)
