"""Wire: messages over a connected socket, each framed (`process.framed`).

`Wire` is a rank's end and blocks; `WakefulWire` is one whose reader is still awake when the next
message comes soon. `Wires` are an executor's ends: while it waits to send to one rank it reads what
any of them sends, so that neither side ever waits for the other to read.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Collection, Sequence

from dovetail.process import LENGTH, framed

READ_BYTES = 1 << 18


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._messages: deque[bytes] = deque()
        self._begun = bytearray()
        self._chunk = memoryview(bytearray(READ_BYTES))

    def send(self, payload: bytes) -> None:
        """Send a message. Raises: OSError when the other end is gone"""
        self.connection.sendall(framed(payload))

    def receive(self) -> bytes:
        """Return the next message. Raises: EOFError when the other end is gone"""
        while not self._messages:
            self.read()
        return self._messages.popleft()

    def has_message(self) -> bool:
        """Return whether `receive` would return at once, without looking at the connection."""
        return bool(self._messages)

    def take(self) -> bytes | None:
        """Return a message that has been read, or None. Mutates: self"""
        return self._messages.popleft() if self._messages else None

    def read(self) -> None:
        """Read what is there, at least a byte. Raises: EOFError when the other end is gone"""
        self._read()

    def _read(self, flags: int = 0) -> None:
        try:
            count = self.connection.recv_into(self._chunk, 0, flags)
        except ConnectionResetError:
            count = 0
        if not count:
            raise EOFError("the other end of the connection is gone")
        start = LENGTH.size
        if not self._begun and count >= start and _length(self._chunk) == count - start:
            self._messages.append(bytes(self._chunk[start:count]))  # one message, as nearly always
            return
        self._begun += self._chunk[:count]
        self._cut()

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
        """Make every call on this wire, by whatever thread, end with an error."""
        with contextlib.suppress(OSError):  # it is closed, or the other end is gone already
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.connection.close()


def _length(buffer: bytearray | memoryview) -> int:
    """Return the length of the message at the beginning of a buffer."""
    (length,) = LENGTH.unpack_from(buffer)
    return int(length)


def _yield_core() -> None:
    """Let another thread run that waits for this core, if there is one."""
    getattr(os, "sched_yield", lambda: time.sleep(0))()  # macOS has only the latter


class WakefulWire(Wire):
    """A wire whose reader stays awake for at most `most_s` before it sleeps.

    Waking a process takes longer than what it is woken for. Whoever else can run on the core does:
    every look at the connection yields it. A wait that was awake in vain halves the next ones, and
    one that was over within `most_s` restores them, so a wire on which little comes costs nothing.
    """

    def __init__(self, connection: socket.socket, most_s: float) -> None:
        super().__init__(connection)
        self._most_s = self._awake_s = most_s

    def read(self) -> None:
        """Read what is there, at least a byte. Raises: EOFError when the other end is gone"""
        started_s = time.perf_counter()
        if not self._read_awake(started_s + self._awake_s):
            self._read()
        is_soon = time.perf_counter() < started_s + self._most_s
        self._awake_s = self._most_s if is_soon else self._awake_s / 2

    def _read_awake(self, until_s: float) -> bool:
        """Return whether something came by then. Raises: EOFError"""
        while time.perf_counter() < until_s:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                _yield_core()
            else:
                return True
        return False


class Wires:
    """An executor's ends of the connections to its ranks, by the rank's number."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._wires = [Wire(connection) for connection in connections]
        self._selector = selectors.DefaultSelector()
        for number, connection in enumerate(connections):
            self._selector.register(connection, selectors.EVENT_READ, number)

    def send(self, payload: bytes) -> None:
        """Send a message to every rank. Raises: OSError, EOFError when one of them is gone"""
        message = framed(payload)
        for number in range(len(self._wires)):
            self._send_to(number, message)

    def send_to(self, numbers: Collection[int], payload: bytes) -> None:
        """Send a message to some ranks. Raises: OSError, EOFError when one of them is gone"""
        for number in numbers:
            self._send_to(number, framed(payload))

    def _send_to(self, number: int, message: bytes) -> None:
        connection, sent = self._wires[number].connection, 0
        while sent < len(message):
            try:
                sent += connection.send(memoryview(message)[sent:], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait_to_send(number)

    def _wait_to_send(self, number: int) -> None:
        """Wait until a rank can be sent to, reading what any of them sends. Mutates: self"""
        connection = self._wires[number].connection
        self._selector.modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
        try:
            self._read_ready(None)
        finally:
            self._selector.modify(connection, selectors.EVENT_READ, number)

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
            self._read_ready(None if deadline_s is None else deadline_s - time.monotonic())

    def _read_ready(self, timeout_s: float | None) -> None:
        """Read from whoever has sent something, waiting for the first. Mutates: self"""
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_READ:
                self._wires[key.data].read()

    def shut_down(self) -> None:
        """Make every call on these wires, by whatever thread, end with an error."""
        for wire in self._wires:
            wire.shut_down()

    def close(self) -> None:
        """Close every connection. May be called twice."""
        self._selector.close()
        for wire in self._wires:
            wire.close()
