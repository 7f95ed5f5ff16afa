"""Supervisor: owns the listening socket, and replaces the server on it without a gap.

The new server starts next to the old one, from the same command line and what the configuration
file has then. Once it listens, the old one accepts no more connections, answers what it has, and
ends. A new server that does not start changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.processes.process import Child, spawn
from dovetail.server.launch.lifecycle import HAND_OVER, HAND_OVER_S
from dovetail.server.launch.records import records_folder
from dovetail_plugins.supervised import deployment
from dovetail_plugins.supervised.deployment import Deployment
from dovetail_plugins.supervised.server import MODULE, ServerBoot

logger = logging.getLogger("dovetail.server")

LOOK_S = 0.1
START_LIMIT_S = 3600.0
GRACE_S = 30.0
"""How much longer than --shutdown-timeout an old server may take."""
TAIL_LINES = 3
SHOWN = "dovetail: error: "
SIGNALLED = 128
"""A shell's exit status for a signal begins here."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Server:
    """One server's process, whose lines go to this one's standard error too. At its end it may take
    `drain_s` to answer."""

    drain_s = 0.0

    def __init__(self, arguments: dict[str, Any], sock: socket.socket) -> None:
        reading, writing = os.pipe()
        try:
            self._child: Child = spawn(
                MODULE,
                ServerBoot(arguments=arguments, socket_fd=sock.fileno()),
                stdout=None,
                stderr=writing,
                pass_fds=[sock.fileno()],
                has_own_group=True,
            )
        finally:
            os.close(writing)
        self._record = records_folder() / f"{self._child.pid}.json"
        self._record.unlink(missing_ok=True)  # of an earlier process with this id
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader = threading.Thread(target=self._copy, args=(reading,), daemon=True)
        self._reader.start()

    def _copy(self, reading: int) -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                sys.stderr.write(line)
                sys.stderr.flush()
                if line.strip():
                    self._tail.append(line.strip())

    @property
    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._child.status

    @property
    def is_ready(self) -> bool:
        """Return whether it listens: then it has its record."""
        return self._record.exists()

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._child.send_signal(number)

    def end(self, grace_s: float) -> int:
        """End it now; return its exit status. Blocks."""
        return self._child.end(grace_s)

    def last_lines(self) -> str:
        """Return the error that it has shown at its end, or else its last line."""
        self._reader.join(1.0)
        lines = list(self._tail)
        while len(lines) > 1 and not lines[0].startswith(SHOWN):
            del lines[0]
        return " ".join(lines).removeprefix(SHOWN)


class Supervisor:
    """The servers on a socket. `arguments` are those of `dovetail serve`. `drain_s` returns how
    long a server that starts now may take to answer at its end; it may raise ConfigError, as the
    server does then."""

    def __init__(
        self, arguments: dict[str, Any], sock: socket.socket, drain_s: Callable[[], float]
    ) -> None:
        self._arguments, self._socket, self._drain_s = arguments, sock, drain_s
        self._is_ending = False
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._serving: Server | None = None
        self._starting: tuple[Server, float] | None = None
        self._leaving: list[tuple[Server, float]] = []
        self._first_failed: int | None = None
        self._state = Deployment(generation=0, state="starting")

    def run(self) -> int:
        """Serve until a signal arrives, or until the server ends; return the exit status."""
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self._signals.put(number))
        self._start()
        try:
            while True:
                status = self._look()
                if status is not None:
                    return status
                self._handle(self._next())
        finally:
            for server in self._all():
                server.end(GRACE_S if server.status is None else 0.0)
            deployment.file_of(os.getpid()).unlink(missing_ok=True)

    def _all(self) -> list[Server]:
        leaving = [server for server, _ in self._leaving]
        starting = [self._starting[0]] if self._starting else []
        return [*leaving, *starting, *([self._serving] if self._serving else [])]

    def _next(self) -> int | None:
        """Return the next signal; None after a while."""
        is_busy = bool(self._starting or self._leaving)
        try:
            return self._signals.get(timeout=LOOK_S if is_busy else 10 * LOOK_S)
        except queue.Empty:
            return None

    def _handle(self, number: int | None) -> None:
        if number == signal.SIGHUP:
            if self._starting is None:
                self._start()
            else:
                logger.warning("a new server is starting already")
        elif number is not None:
            leaving = [] if self._is_ending else [server for server, _ in self._leaving]
            for server in self._all():
                if server not in leaving:  # those drain already: a signal would end them now
                    server.send(signal.SIGTERM)
            self._is_ending = True

    def _start(self) -> None:
        self._note(state="starting", reason="", asked=self._state.asked + 1)
        server = Server(self._arguments, self._socket)
        with contextlib.suppress(ConfigError):  # which the server reports
            server.drain_s = self._drain_s()
        self._starting = server, time.monotonic() + START_LIMIT_S

    def _look(self) -> int | None:
        """Follow the servers; return the exit status once all has ended. Mutates: self"""
        self._leaving = [one for one in self._leaving if self._leaves(*one)]
        if self._starting is not None:
            self._look_at_start(*self._starting)
        if self._serving is None:
            return None if self._starting else self._first_failed
        status = self._serving.status
        return None if status is None or self._leaving else _exit_status(status)

    def _look_at_start(self, server: Server, limit_s: float) -> None:
        if server.status is None and not server.is_ready and time.monotonic() < limit_s:
            return
        self._starting = None
        if server.status is None and server.is_ready:
            old, self._serving = self._serving, server
            generation = self._state.generation + 1
            self._note(state="serving", generation=generation)
            logger.info("server %d serves", generation)
            if old is not None:
                old.send(HAND_OVER)
                limit_s = HAND_OVER_S + old.drain_s + GRACE_S
                self._leaving.append((old, time.monotonic() + limit_s))
            return
        status = server.end(0.0)
        reason = server.last_lines() or f"it ended with status {status}."
        self._note(state="failed", reason=reason)
        if self._serving is None:
            self._first_failed = _exit_status(status) or 1
        else:
            logger.error("the new server did not start, the old one goes on: %s", reason)

    def _leaves(self, server: Server, limit_s: float) -> bool:
        """Return whether an old server still answers; end it after its time."""
        if server.status is not None:
            return False
        if time.monotonic() > limit_s:
            logger.warning("the old server did not end in time")
            server.end(0.0)
        return server.status is None

    def _note(self, **changes: Any) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)
        deployment.write(self._state)


def _exit_status(status: int) -> int:
    """Return a shell's exit status of a process, which may have ended by a signal."""
    return status if status >= 0 else SIGNALLED - status
