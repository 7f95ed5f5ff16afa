"""A headless process: runs engines on this machine for a server on another one.

No HTTP here. Each engine is a child process with its own connections to the server. This one starts
it when all have joined, reports to the server how it ended, and ends it when the server says so or
is gone.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.parallel.joining import Meeting, meeting_of
from dovetail.engine.client.host import LEAVE_WAIT_S, how_it_ended
from dovetail.engine.ipc.socket_ends import DESCRIPTOR
from dovetail.engine.messages import Boot
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.observability.configured_log import set_log_up
from dovetail.processes import process
from dovetail.processes.handshake import receive_message, send_message
from dovetail_plugins.joining.join import JoinedEngine, join_engines
from dovetail_plugins.joining.remote_engine import Ended, Leave, Order, Start

logger = logging.getLogger("dovetail.server")

EXIT_STOPPED = 143


class Lost(msgspec.Struct, frozen=True):
    """The connection to the server has ended."""


class Exit(msgspec.Struct, frozen=True):
    """An engine's process has ended."""

    status: int


class Stop(msgspec.Struct, frozen=True):
    """A signal has come."""

    signal: int


Event: TypeAlias = Start | Leave | Lost | Exit | Stop
Events: TypeAlias = "queue.SimpleQueue[tuple[int, Event]]"


def run(config: Config) -> int:
    """Run this machine's engines until the server ends; return the exit status: 0 when it or a
    signal ended them, 1 when an engine ended by itself or the server is gone.

    Raises: ConfigError
    """
    set_log_up(config)
    meeting = meeting_of(config.parallel)
    specs = resolve(config).each()
    with _stoppable():
        try:
            engines = join(meeting, specs)
        except _StoppedEarly as stopped:
            logger.warning("stopped while joining, by %s", signal.Signals(stopped.number).name)
            return EXIT_STOPPED
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: engines.stop(got))
    return engines.run()


def run_one(config: Config, place: int) -> int:
    """Run one of this machine's configured engines, the one at `place` (from 0 on), if another
    program starts a process for each; return the exit status, as `run`.

    Raises: ConfigError
    """
    set_log_up(config)
    spec = resolve(config).each()[place]
    return join(meeting_of(config.parallel), (spec,)).run()


def join(meeting: Meeting, specs: tuple[EngineSpec, ...]) -> HeadlessEngines:
    """Return engines that the server has let in. Raises: ConfigError"""
    joined = join_engines(meeting, specs)
    logger.info("joined the server at %s; waiting until all engines have", meeting.name)
    return HeadlessEngines(joined, meeting)


class _StoppedEarly(BaseException):
    """A signal arrived before there was an engine to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the block."""

    def stop(number: int, frame: object) -> None:
        raise _StoppedEarly(number)

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class HeadlessEngines:
    """This process's engines. Threads report events; only `run` acts on them."""

    def __init__(self, joined: list[JoinedEngine], meeting: Meeting) -> None:
        self._meeting = meeting
        self._events: Events = queue.SimpleQueue()
        self._engines = [_Engine(number, one, self._events) for number, one in enumerate(joined)]
        self._status = 0

    def run(self) -> int:
        """Serve until every engine has ended; return the exit status."""
        try:
            while any(not engine.is_over for engine in self._engines):
                number, event = self._events.get()
                self._take(self._engines[number], event)
        finally:
            for engine in self._engines:
                engine.close()
        return self._status

    def stop(self, number: int) -> None:
        """Make `run` end all engines, because of a signal. A handler may call this."""
        self._events.put((0, Stop(number)))

    def _take(self, engine: _Engine, event: Event) -> None:
        if engine.is_over and not isinstance(event, Stop):
            return
        match event:
            case Start():
                engine.start()
            case Leave(grace_s):
                if not grace_s:
                    self._status = 1
                    logger.error("engine %d: the server has given it up", engine.number)
                engine.leave(grace_s)
            case Lost():
                self._lose(engine)
            case Exit(0) if not engine.is_leaving:
                engine.exit_status = 0  # ended on request: Leave follows, or the server is gone
            case Exit(status):
                if not engine.is_leaving:
                    self._status = 1
                    logger.error("engine %d: %s", engine.number, how_it_ended(status))
                engine.end(status)
            case Stop(got):
                self._stop(got)

    def _lose(self, engine: _Engine) -> None:
        """End an engine whose server is gone, or has given it up."""
        if not engine.is_leaving:
            self._status = 1
            name = self._meeting.name
            logger.error("engine %d: the server at %s is gone; ending", engine.number, name)
        engine.leave(0.0)

    def _stop(self, number: int) -> None:
        """End all engines immediately: the server lets others take new requests."""
        logger.warning("stopping, by %s", signal.Signals(number).name)
        for engine in self._engines:
            engine.leave(0.0)


class _Engine:
    """One engine: its child process, once it is to start, and the connection that rules it."""

    def __init__(self, place: int, joined: JoinedEngine, events: Events) -> None:
        self.number = joined.spec.engine
        self.is_over = False
        self.is_leaving = False
        self.exit_status: int | None = None
        self._place = place
        self._joined = joined
        self._events = events
        self._child: process.Child | None = None
        self._threads: list[threading.Thread] = []
        self._in_thread(self._listen)

    def _in_thread(self, call: object, *args: object) -> None:
        thread = threading.Thread(target=call, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _tell(self, event: Event) -> None:
        self._events.put((self._place, event))

    def _listen(self) -> None:
        """Report the server's messages until the connection ends."""
        try:
            with contextlib.suppress(OSError, EOFError, msgspec.MsgspecError):
                while True:
                    self._tell(receive_message(self._joined.control, Order).order)
        finally:
            self._tell(Lost())

    def start(self) -> None:
        """Start the engine's process; its connections are its own from then on. Mutates: self"""
        if self._child is not None or self.is_leaving:
            return
        numbers = [connection.fileno() for connection in self._joined.own]
        boot = Boot(spec=self._joined.spec, addresses=tuple(f"{DESCRIPTOR}{n}" for n in numbers))
        self._child = process.spawn(
            "dovetail.engine.process",
            boot,
            variables=self._joined.spec.variables,
            pass_fds=numbers,
        )
        for connection in self._joined.own:
            connection.close()
        self._in_thread(self._wait, self._child)

    def _wait(self, child: process.Child) -> None:
        status = child.wait()
        assert status is not None
        self._tell(Exit(status))

    def leave(self, grace_s: float) -> None:
        """End the engine, by force after `grace_s`; its Exit follows. Mutates: self"""
        self.is_leaving = True
        if self._child is None:
            self.is_over = True
        elif self.exit_status is not None:
            self.end(self.exit_status)
        else:
            self._in_thread(self._end, self._child, grace_s)

    def _end(self, child: process.Child, grace_s: float) -> None:
        if grace_s:
            child.wait(grace_s)
        child.end(LEAVE_WAIT_S)

    def end(self, status: int) -> None:
        """Report to the server how the engine's process has ended. Mutates: self"""
        self.is_over = True
        with contextlib.suppress(OSError):  # a server that is gone need not know
            send_message(self._joined.control, Ended(how_it_ended(status)))
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._joined.control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give everything back; a child that still runs is ended."""
        if self._child is not None:
            self._child.end(LEAVE_WAIT_S)
        self._hang_up()
        for thread in self._threads:
            thread.join()
        self._joined.close()
