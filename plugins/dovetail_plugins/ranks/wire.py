"""Wire: messages over a connection, each framed (`process.framed`).

`Wire` is a rank's end and blocks; `WakefulWire` is one whose reader is still awake when the next
message comes soon. `Wires` are an executor's ends: while it waits to send to one rank it reads from
all of them, so that neither side ever waits for the other to read.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Collection, Sequence

from dovetail.processes.process import LENGTH, framed
from dovetail_kernels.byte_pipe import Pipes
from dovetail_plugins.ranks.connection import (
    Connection,
    SharedConnection,
    SharedWaiter,
    SocketConnection,
    SocketWaiter,
    Waiter,
)


class Wire:
    """One end of a connection, for messages."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._messages: deque[bytes] = deque()
        self._begun = bytearray()

    def send(self, payload: bytes) -> None:
        """Send a message. Raises: OSError when the other end is gone"""
        message, sent = framed(payload), 0
        while sent < len(message):
            count = self.connection.send_some(message, sent)
            if not count:
                self.connection.wait(awake_s=0.0, most_s=None, to_send=True)
            sent += count

    def receive(self) -> bytes:
        """Return the next message. Raises: EOFError when the other end is gone"""
        while not self._messages:
            self.read()
        return self._messages.popleft()

    def has_message(self) -> bool:
        """Return whether `receive` would return immediately, without checking the connection."""
        return bool(self._messages)

    def take(self) -> bytes | None:
        """Return a message that has been read, or None. Mutates: self"""
        return self._messages.popleft() if self._messages else None

    def read(self) -> None:
        """Read the available data, at least a byte. Raises: EOFError when the other end is gone"""
        while not self.read_now():
            self.connection.wait(awake_s=0.0, most_s=None, to_send=False)

    def read_within(self, most_s: float) -> None:
        """Read what comes within a while, maybe nothing. Raises: EOFError"""
        if not self.read_now():
            self.connection.wait(awake_s=0.0, most_s=most_s, to_send=False)
            self.read_now()

    def read_now(self) -> bool:
        """Read the available data; return whether there was any. Raises: EOFError"""
        chunk = self.connection.read_some()
        start = LENGTH.size
        if not self._begun and len(chunk) >= start and _length(chunk) == len(chunk) - start:
            self._messages.append(bytes(chunk[start:]))  # one message, as nearly always
            return True
        self._begun += chunk
        self._cut()
        return bool(chunk)

    def _cut(self) -> None:
        """Cut whole messages from what has been read. Mutates: self"""
        start = LENGTH.size
        while len(self._begun) >= start:
            end = start + _length(self._begun)
            if len(self._begun) < end:
                return
            self._messages.append(bytes(self._begun[start:end]))
            del self._begun[:end]

    def shut_down(self) -> None:
        """Make every call on this wire, from any thread, end with an error."""
        self.connection.shut_down()

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.connection.close()


def _length(buffer: bytearray | memoryview) -> int:
    """Return the length of the message at the beginning of a buffer."""
    (length,) = LENGTH.unpack_from(buffer)
    return int(length)


class WakefulWire(Wire):
    """A wire whose reader stays awake for at most `most_s` before it sleeps.

    Waking a process takes longer than its work. Others can run on the core meanwhile: every look at
    the connection yields it. A wait that was awake in vain halves the next ones, and one that was
    over within `most_s` restores them, so a wire on which little comes costs nothing.
    """

    def __init__(self, connection: Connection, most_s: float) -> None:
        super().__init__(connection)
        self._most_s = self._awake_s = most_s

    def read(self) -> None:
        """Read the available data, at least a byte. Raises: EOFError when the other end is gone"""
        started_s = time.perf_counter()
        while not self.read_now():
            left_s = started_s + self._awake_s - time.perf_counter()
            self.connection.wait(awake_s=max(0.0, left_s), most_s=None, to_send=False)
        is_soon = time.perf_counter() < started_s + self._most_s
        self._awake_s = self._most_s if is_soon else self._awake_s / 2


class Wires:
    """An executor's ends of the connections to its ranks, by the rank's number."""

    def __init__(self, connections: Sequence[Connection], waiter: Waiter) -> None:
        self._wires = [Wire(connection) for connection in connections]
        self._waiter = waiter

    def send(self, payload: bytes) -> None:
        """Send a message to every rank. Raises: OSError, EOFError when a rank is gone"""
        self.send_to(range(len(self._wires)), payload)

    def send_to(self, numbers: Collection[int], payload: bytes) -> None:
        """Send a message to some ranks. Raises: OSError, EOFError when a rank is gone"""
        message = framed(payload)
        for number in numbers:
            self._send_to(number, message)

    def _send_to(self, number: int, message: bytes) -> None:
        connection, sent = self._wires[number].connection, 0
        while sent < len(message):
            mark = self._waiter.mark()
            count = connection.send_some(message, sent)
            if not count and not self._read_now():
                self._waiter.wait(mark, None, number)
            sent += count

    def receive(self, number: int) -> bytes:
        """Return the next message of one rank. Raises: EOFError when it is gone"""
        return self._wires[number].receive()

    def receive_any(self, numbers: Collection[int], deadline_s: float | None) -> int | None:
        """Return the number of one of these ranks whose message is there; None at the deadline.

        Raises: EOFError when one is gone
        """
        while True:
            for number in numbers:
                if self._wires[number].has_message():
                    return number
            if deadline_s is not None and time.monotonic() > deadline_s:
                return None
            mark = self._waiter.mark()
            if not self._read_now():
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                self._waiter.wait(mark, left_s, None)

    def _read_now(self) -> bool:
        """Read from all wires that have data; return whether any had. Mutates: self"""
        return any([wire.read_now() for wire in self._wires])

    def shut_down(self) -> None:
        """Make every call on these wires, from any thread, end with an error."""
        for wire in self._wires:
            wire.shut_down()

    def close(self) -> None:
        """Close every connection. May be called twice."""
        self._waiter.close()
        for wire in self._wires:
            wire.close()


def socket_wires(connected: Sequence[socket.socket]) -> Wires:
    """Return the ends that are sockets."""
    return Wires([SocketConnection(one) for one in connected], SocketWaiter(connected))


def shared_wires(pipes: Pipes) -> Wires:
    """Return the ends in shared memory of the process in the middle."""
    ends = [pipes.end_to(number) for number in range(pipes.count)]
    return Wires([SharedConnection(end) for end in ends], SharedWaiter(ends[0].bell))
