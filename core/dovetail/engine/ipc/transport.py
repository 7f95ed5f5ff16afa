"""Transport: typed messages between API processes and an engine, over ZeroMQ or in memory.

The engine's end is a ROUTER on a Unix-domain socket in a private folder, each API process a DEALER.
The in-memory version connects a thread to an event loop. All ends share one interface. Knows
message types, not their meaning. Source of the framing: ZeroMQ RFC 28.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from dovetail.engine.messages import FromEngine, Goodbye, ToEngine
from dovetail.errors import ConfigError, EngineDead

logger = logging.getLogger(__name__)

# sockaddr_un holds 108 bytes on Linux, 104 elsewhere; "ipc://" is not part of it.
MAX_SOCKET_PATH_BYTES = 100
IPC = "ipc://"
RECONNECT_MS = 10
# A client this many messages behind has stopped or died: do not buffer more for it.
MAX_QUEUED_MESSAGES = 100_000
DRAIN_S = 0.002
"""How long a client reads messages at a stretch: meanwhile its event loop accepts no request."""

OnMessage = Callable[[FromEngine], None]
OnLost = Callable[[str], None]


class EngineEnd(Protocol):
    """The engine's connection to its clients. Used by one thread."""

    def receive(self, timeout_s: float) -> list[tuple[bytes, ToEngine]]:
        """Return all pending messages; wait up to `timeout_s` for the first."""

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send; return False if that client is gone. Never blocks."""

    def close(self) -> None:
        """Close the sockets. May be called twice."""


class ClientEnd(Protocol):
    """An API process's connection to its engine. Used by one event loop."""

    name: str

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Deliver messages to a callback in the loop's thread from now on."""

    def send(self, message: ToEngine) -> None:
        """Send without blocking. Raises: EngineDead if the engine cannot be reached."""

    def close(self) -> None:
        """Send Goodbye and close the sockets. May be called twice."""


def make_socket_folder(parent: str | None = None) -> Path:
    """Return a new folder that only this user can enter, with a path short enough for a socket.

    Raises: ConfigError if no temporary folder has a short path, or `parent` cannot hold it.
    """
    longest = MAX_SOCKET_PATH_BYTES - len("/dovetail-xxxxxxxx/engine.sock")
    if parent is not None:
        return _make_in(parent, longest)
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        if len(os.fsencode(parent)) <= longest:
            return Path(tempfile.mkdtemp(prefix="dovetail-", dir=parent))
    raise ConfigError(
        "the path of the temporary folder is too long for a socket.",
        where="TMPDIR",
        fix=f"set TMPDIR to a path of at most {longest} bytes.",
    )


def _make_in(parent: str, longest: int) -> Path:
    """Return a new folder in the --socket-dir folder. Raises: ConfigError."""
    where, path = "--socket-dir", Path(parent).expanduser().resolve()
    if len(os.fsencode(path)) > longest:
        raise ConfigError(
            "the path is too long for a socket.", where=where, fix=f"use at most {longest} bytes."
        )
    try:
        return Path(tempfile.mkdtemp(prefix="dovetail-", dir=path))
    except OSError as error:
        raise ConfigError(
            f"no socket can be made there: {error}.", where=where, fix="use a folder that you own."
        ) from error


def address_in(folder: Path) -> str:
    """Return the address of the engine's socket in its folder."""
    return f"{IPC}{folder}/engine.sock"


def lock_file_of(addresses: Sequence[str]) -> Path | None:
    """Return the file for locks between the clients of engines: next to the first socket's folder,
    which a restart replaces; None without a Unix-domain socket."""
    paths = (Path(one.removeprefix(IPC)) for one in addresses if one.startswith(IPC))
    return next((Path(f"{path.parent}.lock") for path in paths), None)


class ZmqEngineEnd:
    """The engine's ROUTER. A message that cannot be decoded is logged and dropped."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # An API process that reconnects under its old name replaces its dead connection.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.set_hwm(MAX_QUEUED_MESSAGES)
        self._socket.bind(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, timeout_s: float) -> list[tuple[bytes, ToEngine]]:
        """Return all pending messages; wait up to `timeout_s` for the first."""
        received: list[tuple[bytes, ToEngine]] = []
        if not self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            return received
        while True:
            try:
                client, payload = self._socket.recv_multipart(zmq.NOBLOCK)
                received.append((client, self._decoder.decode(payload)))
            except zmq.Again:
                return received
            except (msgspec.DecodeError, ValueError) as error:
                logger.error("a message was dropped, it is malformed: %s", error)

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send; return False if that client is gone. Never blocks."""
        try:
            self._socket.send_multipart((client, self._encoder.encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Close the socket, waiting up to 0.2 s for messages in transit."""
        if not self._socket.closed:
            self._socket.close()
            self._context.term()


class ZmqClientEnd:
    """An API process's DEALER, read by its event loop without a thread.

    The loop watches ZeroMQ's descriptor, which is edge-triggered. Any use of the socket may consume
    an edge, so every send also checks for messages.
    """

    def __init__(self, address: str) -> None:
        self.name = secrets.token_hex(4)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, self.name.encode())
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.set_hwm(MAX_QUEUED_MESSAGES)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_drain_due = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Deliver messages to a callback in the loop's thread from now on."""
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        loop.add_reader(self._socket.FD, self._drain)
        loop.add_reader(self._monitor.FD, self._look_at_monitor)
        # ZeroMQ signals only after its socket has been found empty.
        loop.call_soon(self._look_at_monitor)
        self._drain_soon()

    def send(self, message: ToEngine) -> None:
        """Send without blocking. Raises: EngineDead if the engine cannot be reached."""
        if self._socket.closed:
            raise EngineDead("the engine has been shut down.")
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDead("the engine does not read its messages any more.") from None
        self._drain_soon()

    def _drain_soon(self) -> None:
        if self._loop is not None and not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self, limit_s: float = DRAIN_S) -> None:
        """Deliver messages, and after `limit_s` let the loop do other work in between."""
        self._is_drain_due = False
        end_s = time.monotonic() + limit_s
        while not self._socket.closed and _has_message(self._socket):
            self._on_message(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            if time.monotonic() > end_s:
                self._drain_soon()
                return

    def _look_at_monitor(self) -> None:
        is_lost = False
        while not self._monitor.closed and _has_message(self._monitor):
            parts = self._monitor.recv_multipart(zmq.NOBLOCK)
            is_lost |= parse_monitor_message(parts)["event"] == zmq.EVENT_DISCONNECTED
        if is_lost:
            self._socket.setsockopt(zmq.LINGER, 0)  # nobody reads any more: `close` must not wait
            self._drain(math.inf)  # deliver its last messages, if any
            self._on_lost("the engine process closed its connection.")

    def close(self) -> None:
        """Send Goodbye and close the sockets. May be called twice."""
        if self._socket.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.FD)
            self._loop.remove_reader(self._monitor.FD)
        try:
            self._socket.send(self._encoder.encode(Goodbye()), zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("no goodbye sent: the engine no longer reads its messages.")
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._context.term()


def _has_message(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class MemoryLink:
    """Both ends in one process: an engine thread and an event loop."""

    def __init__(self) -> None:
        to_engine: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.client_end = MemoryClientEnd(to_engine)
        self.engine_end = MemoryEngineEnd(to_engine, self.client_end)


class MemoryClientEnd:
    """The event loop's end. Messages are passed without serialization."""

    name = "local"

    def __init__(self, to_engine: queue.SimpleQueue[ToEngine]) -> None:
        self._to_engine = to_engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: OnMessage | None = None
        self._is_closed = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Deliver messages to a callback in the loop's thread from now on."""
        self._on_message = on_message
        self._loop = loop

    def deliver(self, message: FromEngine) -> bool:
        """Pass a message to the loop, from any thread; return whether there is a loop."""
        loop, on_message = self._loop, self._on_message
        if self._is_closed or loop is None or on_message is None:
            return False
        try:
            loop.call_soon_threadsafe(on_message, message)
        except RuntimeError:  # the loop was closed just now
            return False
        return True

    def send(self, message: ToEngine) -> None:
        """Send without blocking."""
        self._to_engine.put(message)

    def close(self) -> None:
        """Send Goodbye. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._to_engine.put(Goodbye())


class MemoryEngineEnd:
    """The engine thread's end."""

    def __init__(self, to_engine: queue.SimpleQueue[ToEngine], client_end: MemoryClientEnd) -> None:
        self._to_engine = to_engine
        self._client_end = client_end

    def receive(self, timeout_s: float) -> list[tuple[bytes, ToEngine]]:
        """Return all pending messages; wait up to `timeout_s` for the first."""
        client = self._client_end.name.encode()
        received: list[tuple[bytes, ToEngine]] = []
        try:
            if timeout_s > 0:
                received.append((client, self._to_engine.get(timeout=timeout_s)))
            while True:
                received.append((client, self._to_engine.get_nowait()))
        except queue.Empty:
            return received

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send; return False if the loop is gone. Never blocks."""
        return self._client_end.deliver(message)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
