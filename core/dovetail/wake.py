"""WakeSignal: an event that wakes threads that wait for sockets too, so that they need not poll."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Protocol


class Waitable(Protocol):
    """A socket, or whatever else has a file descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


class WakeSignal(threading.Event):
    """An event with a descriptor, which is readable from `set` on; it is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._theirs, self._ours = socket.socketpair()

    def set(self) -> None:
        """Wake everybody who waits, now and later. May be called twice, but not once closed.
        Mutates: self"""
        if not self.is_set():
            super().set()
            self._ours.send(b"\0")  # never read

    def fileno(self) -> int:
        """Return what becomes readable when it is set."""
        return self._theirs.fileno()

    def wait_for(self, source: Waitable) -> bool:
        """Return whether there is something to read at `source`; False once this is set."""
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            selector.register(self, selectors.EVENT_READ)
            selector.select()
        return not self.is_set()

    def close(self) -> None:
        """Let go of the descriptors, once nobody waits any more."""
        self._theirs.close()
        self._ours.close()
