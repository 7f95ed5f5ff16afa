"""WakeSignal: an event that also wakes threads waiting for sockets, so they need not poll."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Protocol


class Waitable(Protocol):
    """A socket, or anything else with a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


class WakeSignal(threading.Event):
    """An event with a file descriptor that becomes readable at `set`; it is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._theirs, self._ours = socket.socketpair()

    def set(self) -> None:
        """Wake all current and later waiters. May be called twice, but not after `close`.
        Mutates: self"""
        if not self.is_set():
            super().set()
            self._ours.send(b"\0")  # never read

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the event is set."""
        return self._theirs.fileno()

    def wait_for(self, source: Waitable) -> bool:
        """Return whether there is something to read at `source`; False once this is set."""
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            selector.register(self, selectors.EVENT_READ)
            selector.select()
        return not self.is_set()

    def close(self) -> None:
        """Close the descriptors. Call it when no thread waits any more."""
        self._theirs.close()
        self._ours.close()
