"""RemoteEngine: the server's handle on an engine of another machine, which has joined.

Its first connection links the processes that start and watch it; it carries the messages below, and
ends with either of them. The second leads to the server's main process, others to API processes.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading

import msgspec

from dovetail.engine.client.host import KILL_WAIT_S, OnExit
from dovetail.engine.ipc.socket_ends import DESCRIPTOR, SocketClientEnd
from dovetail.engine.ipc.transport import ClientEnd
from dovetail.errors import EngineDead
from dovetail.processes.handshake import receive_message, send_message
from dovetail_plugins.joining.peers import Peer


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All engines have joined: load the model."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End the engine, by force after `grace_s`, which is 0 if the server has given it up."""

    grace_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The engine has ended: its last message."""

    reason: str


class Order(msgspec.Struct, frozen=True):
    """A message from the server on the first connection."""

    order: Start | Leave


class RemoteEngine:
    """An EngineHost for an engine that has joined. Creating it sends the engine its Start."""

    restart_refusal = "This server does not start engines of other machines again; they may join."
    absence = ""

    def __init__(self, peer: Peer) -> None:
        self._ending = peer.ending
        self._control, own, *others = peer.connections
        self._others = others
        self.end: ClientEnd = SocketClientEnd(own)
        self._watcher: threading.Thread | None = None
        self._has_ended = threading.Event()
        with contextlib.suppress(OSError):  # the watcher notices a lost connection
            send_message(self._control, Order(Start()))

    @property
    def has_ended(self) -> bool:
        """Return whether the engine has ended, or its machine is gone."""
        return self._has_ended.is_set()

    def address_for(self, process: int) -> str:
        """Return the address at which API process `process`, counted from 0, reaches the engine."""
        return f"{DESCRIPTOR}{self._others[process].fileno()}"

    def hand_over(self) -> None:
        """Close our copies of the API processes' connections, once these have started."""
        for connection in self._others:
            connection.close()

    def watch(self, on_exit: OnExit) -> None:
        """Call `on_exit` with the reason when the engine ends."""

        def wait() -> None:
            reason = self._ending
            try:
                with contextlib.suppress(OSError, EOFError, msgspec.MsgspecError):
                    reason = receive_message(self._control, Ended).reason
            finally:
                self._has_ended.set()
                on_exit(reason)

        self._watcher = threading.Thread(target=wait, name="engine-watcher", daemon=True)
        self._watcher.start()

    def stop(self, timeout_s: float = KILL_WAIT_S) -> None:
        """End the engine, by force after `timeout_s`. Blocks; may be called twice."""
        self.end.close()
        self.hand_over()
        with contextlib.suppress(OSError):  # the engine has ended, or stop() was called before
            send_message(self._control, Order(Leave(timeout_s)))
        if self._watcher is not None:
            self._has_ended.wait(timeout_s)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the watcher
        if self._watcher is not None:
            self._watcher.join()
        self._control.close()


class AbsentEngine:
    """The EngineHost in the place of an engine that has not joined."""

    restart_refusal = absence = "it has not joined."

    def __init__(self) -> None:
        self.end: ClientEnd = _NoEnd()

    def address_for(self, process: int) -> None:
        """Return None: there is no engine."""

    def hand_over(self) -> None:
        """Do nothing: there are no connections."""

    def watch(self, on_exit: OnExit) -> None:
        """Do nothing: there is no engine that could end."""

    def stop(self, timeout_s: float) -> None:
        """Do nothing: there is no engine."""


class _NoEnd:
    """A connection to nothing."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(4)

    def attach(self, *_: object) -> None:
        """Do nothing: no message will come."""

    def send(self, message: object) -> None:
        """Raise EngineDead."""
        raise EngineDead(AbsentEngine.absence)

    def close(self) -> None:
        """Do nothing: nothing is open."""
