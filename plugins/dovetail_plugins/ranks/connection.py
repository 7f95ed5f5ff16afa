"""Connection: how bytes go between an executor and a rank, and how one waits for them.

A socket, or, between processes of one machine, memory that they share (`SharedConnection`). Knows
no messages: `ranks.wire` does.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Protocol

from dovetail_kernels.byte_pipe import BellWaiter, PipeEnd

READ_BYTES = 1 << 18


class Connection(Protocol):
    """One end of a connection for bytes. Only `wait` waits."""

    def send_some(self, message: bytes, first: int) -> int:
        """Send what fits without waiting, from byte `first` on; return how many bytes were sent.

        Raises: OSError when the other end is gone
        """

    def read_some(self) -> memoryview:
        """Return the available data, maybe none; valid until the next call.

        Raises: EOFError when the other end is gone
        """

    def wait(self, *, awake_s: float, most_s: float | None, to_send: bool) -> None:
        """Wait until there is something to read, or, `to_send`, room for more. Nothing may be
        there after all. The last call must have found nothing."""

    def shut_down(self) -> None:
        """Make every call, from any thread, end with an error. May be called twice."""

    def close(self) -> None:
        """Close this end. May be called twice."""


class SocketConnection:
    """A connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._chunk = memoryview(bytearray(READ_BYTES))

    def send_some(self, message: bytes, first: int) -> int:
        """Send as much as possible without waiting (see Connection)."""
        try:
            return self.socket.send(memoryview(message)[first:], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def read_some(self) -> memoryview:
        """Return the available data (see Connection)."""
        try:
            count = self.socket.recv_into(self._chunk, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._chunk[:0]
        except ConnectionResetError:
            count = 0
        if not count:
            raise EOFError("the other end of the connection is gone")
        return self._chunk[:count]

    def wait(
        self, *, awake_s: float = 0.0, most_s: float | None = None, to_send: bool = False
    ) -> None:
        """Wait for something to read or for room (see Connection)."""
        poller, until_s = select.poll(), time.perf_counter() + awake_s
        poller.register(self.socket, select.POLLIN | (select.POLLOUT if to_send else 0))
        while awake_s > 0 and time.perf_counter() < until_s:
            if poller.poll(0):
                return
            _yield_core()
        poller.poll(None if most_s is None else most_s * 1e3)

    def shut_down(self) -> None:
        """Make every call end with an error (see Connection)."""
        with contextlib.suppress(OSError):  # it is closed, or the other end is gone already
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self.socket.close()


class SharedConnection:
    """An end of a pipe in shared memory. The end of a process is not seen here: the watcher of
    ranks (`ranks.links`) sees it, and shuts the connection down."""

    def __init__(self, end: PipeEnd) -> None:
        self._end = end
        self._mark = 0

    @property
    def bell(self) -> BellWaiter:
        """Return the waiter for all connections of this process."""
        return self._end.bell

    def send_some(self, message: bytes, first: int) -> int:
        """Send as much as possible without waiting (see Connection)."""
        self._mark = self.bell.mark()
        return self._end.put(message, first)

    def read_some(self) -> memoryview:
        """Return the available data (see Connection)."""
        self._mark = self.bell.mark()
        return self._end.take()

    def wait(
        self, *, awake_s: float = 0.0, most_s: float | None = None, to_send: bool = False
    ) -> None:
        """Wait for something to read or for room (see Connection)."""
        self.bell.wait(self._mark, awake_s=awake_s, most_s=most_s)

    def shut_down(self) -> None:
        """Make every call end with an error (see Connection)."""
        self._end.close()

    def close(self) -> None:
        """Close this end. May be called twice."""
        self._end.close()


def _yield_core() -> None:
    """Let another thread run that waits for this core, if there is one."""
    getattr(os, "sched_yield", lambda: time.sleep(0))()  # macOS has only the latter


class Waiter(Protocol):
    """Waits for any of an executor's connections."""

    def mark(self) -> int:
        """Return a mark of the current state, before the connections are checked."""

    def wait(self, mark: int, most_s: float | None, to_send: int | None) -> None:
        """Wait until something has come since `mark`, or there is room on connection `to_send`."""

    def close(self) -> None:
        """Release the resources for waiting. May be called twice."""


class SocketWaiter:
    """Waits for any of several sockets."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        self._selector = selectors.DefaultSelector()
        for one in sockets:
            self._selector.register(one, selectors.EVENT_READ)

    def mark(self) -> int:
        """Return nothing of use: a socket that is ready stays so."""
        return 0

    def wait(self, mark: int, most_s: float | None, to_send: int | None) -> None:
        """Wait for any socket (see Waiter)."""
        if to_send is None:
            self._selector.select(most_s)
            return
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._sockets[to_send], both)
        try:
            self._selector.select(most_s)
        finally:
            self._selector.modify(self._sockets[to_send], selectors.EVENT_READ)

    def close(self) -> None:
        """Close the selector. May be called twice."""
        self._selector.close()


class SharedWaiter:
    """Waits for the bell of this process, which all its pipes ring."""

    def __init__(self, bell: BellWaiter) -> None:
        self._bell = bell

    def mark(self) -> int:
        """Return how often the bell has been rung."""
        return self._bell.mark()

    def wait(self, mark: int, most_s: float | None, to_send: int | None) -> None:
        """Wait for the bell (see Waiter)."""
        self._bell.wait(mark, most_s=most_s)

    def close(self) -> None:
        """Keep the memory: the connections have it too."""
