"""Both ends of the transport over connected TCP sockets: an engine on another machine.

The engine opens a connection to each API process; the first is to its owner, the process that
started it. Sending never blocks: data is buffered until the reader takes it, up to a limit.
Messages are framed (`process.framed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import selectors
import socket
from collections.abc import Iterator, Sequence

import msgspec

from dovetail.engine.ipc.transport import (
    ClientEnd,
    EngineEnd,
    OnLost,
    OnMessage,
    ZmqClientEnd,
    ZmqEngineEnd,
)
from dovetail.engine.messages import FromEngine, Goodbye, Shutdown, ToEngine
from dovetail.errors import EngineDead
from dovetail.processes.process import LENGTH, framed

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 18
MAX_PENDING_BYTES = 256 << 20
"""A reader that is this far behind has stopped or died."""
DESCRIPTOR = "fd:"
"""The prefix of an address that is a connected socket of this process."""


def client_end(address: str) -> ClientEnd:
    """Return an API process's end for an address: a Unix-domain socket or an open descriptor."""
    number = descriptor_of(address)
    if number is None:
        return ZmqClientEnd(address)
    return SocketClientEnd(_inherited(number))


def descriptor_of(address: str) -> int | None:
    """Return the descriptor in an address, None for any other address."""
    return int(address.removeprefix(DESCRIPTOR)) if address.startswith(DESCRIPTOR) else None


def engine_end(addresses: Sequence[str]) -> EngineEnd:
    """Return an engine's end: a Unix-domain socket for all its clients, or one descriptor per
    client, with its owner's first."""
    numbers = [descriptor_of(address) for address in addresses]
    connections = [_inherited(number) for number in numbers if number is not None]
    return SocketEngineEnd(connections) if connections else ZmqEngineEnd(addresses[0])


def _inherited(number: int) -> socket.socket:
    connection = socket.socket(fileno=number)
    connection.set_inheritable(False)
    return connection


class _Frames:
    """Splits the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Append received bytes. Mutates: self"""
        self._buffer += data

    def take(self) -> Iterator[bytes]:
        """Yield the complete messages. Mutates: self"""
        start = 0
        buffer = self._buffer
        try:
            while len(buffer) - start >= LENGTH.size:
                (length,) = LENGTH.unpack_from(buffer, start)
                end = start + LENGTH.size + length
                if len(buffer) < end:
                    return
                message = bytes(buffer[start + LENGTH.size : end])
                start = end
                yield message
        finally:
            del buffer[:start]


class _Outbox:
    """The send buffer of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = bytearray()

    def __bool__(self) -> bool:
        return bool(self._pending)

    def send(self, payload: bytes) -> None:
        """Send what the socket takes, buffer the rest. Raises: OSError; BufferError at the limit"""
        self._pending += framed(payload)
        self.flush()
        if len(self._pending) > MAX_PENDING_BYTES:
            raise BufferError("the other side does not read")

    def flush(self) -> None:
        """Send what the socket takes without blocking. Raises: OSError. Mutates: self"""
        while self._pending:
            try:
                sent = self._connection.send(self._pending[:READ_BYTES])
            except BlockingIOError:
                return
            del self._pending[:sent]


class _Peer:
    """An API process, as the engine sees it."""

    def __init__(self, name: bytes, connection: socket.socket) -> None:
        self.name = name
        self.connection = connection
        self.outbox = _Outbox(connection)
        self.frames = _Frames()


class SocketEngineEnd:
    """The engine's end. A lost connection to its owner counts as Shutdown."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        self._peers: dict[bytes, _Peer] = {}
        self._departed: list[bytes] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        for number, connection in enumerate(connections):
            connection.setblocking(False)
            peer = _Peer(str(number).encode(), connection)
            self._peers[peer.name] = peer
            self._selector.register(connection, selectors.EVENT_READ, peer)
        self._owner = b"0"

    def receive(self, timeout_s: float) -> list[tuple[bytes, ToEngine]]:
        """Return all pending messages; wait up to `timeout_s` for the first."""
        received: list[tuple[bytes, ToEngine]] = []
        for key, events in self._selector.select(0.0 if self._departed else timeout_s):
            peer: _Peer = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ:
                received += self._read(peer)
        departed, self._departed = self._departed, []
        for name in departed:
            received.append((name, Shutdown() if name == self._owner else Goodbye()))
        return received

    def _read(self, peer: _Peer) -> list[tuple[bytes, ToEngine]]:
        """Return the messages received from a client. Mutates: self"""
        try:
            data = peer.connection.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._lose(peer)
            return []
        peer.frames.add(data)
        received: list[tuple[bytes, ToEngine]] = []
        for payload in peer.frames.take():
            try:
                received.append((peer.name, self._decoder.decode(payload)))
            except (msgspec.DecodeError, ValueError) as error:
                logger.error("a message was dropped, it is malformed: %s", error)
        return received

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send; return False if that client is gone. Never blocks."""
        peer = self._peers.get(client)
        if peer is None:
            return False
        try:
            peer.outbox.send(self._encoder.encode(message))
        except (OSError, BufferError):
            self._lose(peer)
            return False
        self._watch(peer)
        return True

    def _flush(self, peer: _Peer) -> None:
        try:
            peer.outbox.flush()
        except OSError:
            self._lose(peer)
            return
        self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        """Watch the socket for writability as long as data is buffered."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outbox else 0)
        if self._selector.get_key(peer.connection).events != events:
            self._selector.modify(peer.connection, events, peer)

    def _lose(self, peer: _Peer) -> None:
        if self._peers.pop(peer.name, None) is not None:
            self._selector.unregister(peer.connection)
            peer.connection.close()
            self._departed.append(peer.name)

    def close(self) -> None:
        """Close the connections. May be called twice."""
        for peer in self._peers.values():
            peer.connection.close()
        self._peers.clear()
        self._selector.close()


class SocketClientEnd:
    """An API process's end, read by its event loop."""

    def __init__(self, connection: socket.socket) -> None:
        self.name = secrets.token_hex(4)
        connection.setblocking(False)
        self._connection = connection
        self._outbox = _Outbox(connection)
        self._frames = _Frames()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_writing = False
        self._is_lost = False
        self._is_closed = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_message: OnMessage, on_lost: OnLost
    ) -> None:
        """Deliver messages to a callback in the loop's thread from now on."""
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        loop.add_reader(self._connection.fileno(), self._read)

    def send(self, message: ToEngine) -> None:
        """Send without blocking. Raises: EngineDead if the engine cannot be reached."""
        if self._is_closed:
            raise EngineDead("the engine has been shut down.")
        payload = self._encoder.encode(message)
        try:
            self._outbox.send(payload)
        except OSError as error:
            raise EngineDead(f"the connection to the engine is lost: {error}") from None
        except BufferError:
            raise EngineDead("the engine does not read its messages any more.") from None
        self._watch_room()

    def _watch_room(self) -> None:
        """Watch the socket for writability as long as data is buffered. Mutates: self"""
        if self._loop is None or self._is_writing == bool(self._outbox):
            return
        self._is_writing = bool(self._outbox)
        if self._is_writing:
            self._loop.add_writer(self._connection.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._connection.fileno())

    def _flush(self) -> None:
        try:
            self._outbox.flush()
        except OSError:
            self._lose()
            return
        self._watch_room()

    def _read(self) -> None:
        """Deliver the messages of one read, then let the loop do other work."""
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._frames.add(data)
        for payload in self._frames.take():
            self._on_message(self._decoder.decode(payload))
            if self._is_closed:
                return

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._unwatch()
            self._on_lost("the connection to the engine was lost.")

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection.fileno())
            self._loop.remove_writer(self._connection.fileno())
        self._is_writing = False
        self._loop = None

    def close(self) -> None:
        """Send Goodbye and close the connection. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unwatch()
        with contextlib.suppress(OSError, BufferError):  # a dead peer needs no goodbye
            self._outbox.send(self._encoder.encode(Goodbye()))
        self._connection.close()
