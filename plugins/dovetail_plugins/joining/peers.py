"""PeerListener: a socket that processes of other machines join, each by several connections.

On each connection both sides prove the secret (`processes.handshake`); then the peer sends a
JoinRequest and gets a JoinReply.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Self

import msgspec

from dovetail.engine.faults import fault_of
from dovetail.engine.messages import ErrorMessage
from dovetail.errors import ConfigError
from dovetail.observability.supervise import supervised_thread
from dovetail.processes import handshake
from dovetail.processes.wake import WakeSignal
from dovetail.version import __version__

logger = logging.getLogger(__name__)

FIRST = 0  # the number of a peer's first connection
SETTINGS = "settings"
POLL_PERIOD_S = 0.2
MAX_HANDSHAKES = 64
"""Maximum number of handshakes at the same time."""
REPORT_PERIOD_S = 10.0
FIX = "start every process again, all with the same version of dovetail and the same flags."


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A peer introduces itself. `kind` is "engine" or "rank", `launch` is unique to one start of
    it. `facts`, on the first connection only, is what it was started with, encoded."""

    kind: str
    number: int
    launch: str
    facts: bytes = b""
    connection: int = FIRST
    process: int = msgspec.field(default_factory=os.getpid)
    host: str = msgspec.field(default_factory=socket.gethostname)
    version: str = __version__

    @property
    def name(self) -> str:
        """Return the peer's name for messages."""
        return f"{self.kind} {self.number} (process {self.process} on {self.host})"


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a JoinRequest: how many connections follow the first, or why it is refused; to
    one of the kind SETTINGS, the encoded settings of an engine, and the `free` numbers."""

    num_more: int = 0
    refusal: ErrorMessage | None = None
    settings: bytes = b""
    free: tuple[int, ...] = ()


@dataclass(slots=True)
class Peer:
    """A process that has joined, or is still opening its connections."""

    request: JoinRequest
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def ending(self) -> str:
        """Return the known reason for its end."""
        return f"{self.request.name} ended, or lost its connection."

    def close(self) -> None:
        """Close its connections."""
        for connection in self.connections:
            connection.close()

    def has_left(self) -> bool:
        """Return whether it is gone: it sends nothing on its first connection before Start."""
        arrived = select.poll()
        arrived.register(self.connections[0], select.POLLIN)
        return bool(arrived.poll(0))


class PeerListener(ABC):
    """A listening socket and its peers; those that `wait` has returned stay when it is closed."""

    kind: str
    address_flag: str
    number_flag: str
    number_fix: str
    ends_on_refusal = False
    """Whether a peer that is refused, or leaves, ends `wait`."""

    def __init__(
        self, sock: socket.socket, secret: bytes, place: str, wanted: Collection[int], num_more: int
    ) -> None:
        """Accept the `wanted` numbers, each with `num_more` connections after its first. `place` is
        its address in messages."""
        self.wanted = frozenset(wanted)
        self._secret, self._place, self._num_more = secret, place, num_more
        self._peers: dict[int, Peer] = {}
        self._refusal: ConfigError | None = None
        self._is_complete = self._is_closed = False
        self._lock = threading.RLock()
        self._places = threading.BoundedSemaphore(MAX_HANDSHAKES)
        self._socket = sock
        self._socket.setblocking(False)
        self._is_over = WakeSignal()
        self._thread = supervised_thread("peer-listener", self._accept, is_over=self._is_over)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more peers and end a running `wait`. Returned peers keep their connections."""
        with self._lock:
            self._is_closed = True
            peers = [] if self._is_complete else list(self._peers.values())
            self._peers.clear()
        self._is_over.set()
        self._thread.join()
        self._is_over.close()
        self._socket.close()
        for peer in peers:
            peer.close()

    def wait(self, limit_s: float, look: Callable[[], None] | None = None) -> list[Peer]:
        """Return all peers, by number, once they have joined. Blocks; calls `look` meanwhile.

        Raises: ConfigError if they do not join in time or this is closed; whatever `look` raises
        """
        begun_s = reported_s = time.monotonic()
        logger.info("waiting for %s at %s", self.listed(self.wanted), self._place)
        while (peers := self._all_joined()) is None:
            if look is not None:
                look()
            if self._refusal is not None and self.ends_on_refusal:
                raise self._refusal
            now_s = time.monotonic()
            if self._is_closed or now_s - begun_s > limit_s:
                raise self._missing(limit_s)
            if now_s - reported_s > REPORT_PERIOD_S:
                reported_s = now_s
                logger.info("%s", self._missing(limit_s).what)
            time.sleep(POLL_PERIOD_S / 4)
        return peers

    def _all_joined(self) -> list[Peer] | None:
        """Return the peers if all have joined. Peers that have disconnected are removed."""
        with self._lock:
            for number, peer in list(self._peers.items()):
                if peer.has_left():
                    message = f"{peer.request.name} disconnected before all {self.kind}s had joined"
                    logger.warning(message)
                    self._refusal = ConfigError(f"{message}.", where=self.address_flag)
                    self._peers.pop(number).close()
            if self._is_closed or self._present() != self.wanted:
                return None
            return self._complete()

    def _complete(self) -> list[Peer]:
        """Return the peers that have joined, by number, and end the wait. Mutates: self"""
        self._is_complete = True
        return [self._peers[number] for number in sorted(self._present())]

    def _present(self) -> frozenset[int]:
        with self._lock:
            peers = self._peers.items()
            return frozenset(n for n, peer in peers if len(peer.connections) > self._num_more)

    def _missing(self, limit_s: float) -> ConfigError:
        missing = self.wanted - (present := self._present())
        return ConfigError(
            f"{len(present)} of {len(self.wanted)} {self.kind}s of other machines have joined at "
            f"{self._place} within {limit_s:g} s; still missing: {self.listed(missing)}.",
            where=self.address_flag,
            fix="see the log lines on their machines, and check that these reach this address.",
        )

    def listed(self, numbers: Collection[int]) -> str:
        """Return several peers as text."""
        *first, last = map(str, sorted(numbers))
        return f"{self.kind}s {', '.join(first)} and {last}" if first else f"{self.kind} {last}"

    def _accept(self) -> None:
        """Accept connections; handshake each in its own thread."""
        while self._is_over.wait_for(self._socket):
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not isinstance(error, BlockingIOError):  # too many open files, for example
                    logger.warning("a connection could not be accepted: %s", error)
                    time.sleep(POLL_PERIOD_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # too many threads, for example
                logger.warning("a connection could not be accepted: %s", error)
                connection.close()
                self._places.release()

    def _greet(self, connection: socket.socket) -> None:
        """Handshake a connection, then accept or refuse it."""
        try:
            connection.settimeout(handshake.HELLO_LIMIT_S)
            handshake.challenge(connection, self._secret)
            request = handshake.receive_message(connection, JoinRequest)
            handshake.make_lasting(connection)
            if request.kind == SETTINGS:
                handshake.send_message(connection, self._settings(request))
                connection.close()
                return
            with self._lock:
                refusal = self._why_not(request) or self._take(request, connection)
            if refusal is not None:
                logger.warning("%s may not join: %s", request.name, refusal)
                handshake.send_message(connection, JoinReply(refusal=fault_of(refusal)))
                connection.close()
                self._refusal = refusal
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            logger.debug("a connection failed before it had joined: %s", error)
            connection.close()
        finally:
            self._places.release()

    def _why_not(self, request: JoinRequest) -> ConfigError | None:
        """Return why a peer is refused, or None."""
        if request.version != __version__:
            what = f"{request.name} runs dovetail {request.version}, and the server {__version__}."
            return ConfigError(what, where=self.address_flag, fix=FIX)
        known = self._peers.get(request.number)
        if known is not None and known.request.launch != request.launch:
            what = f"{self.kind} {request.number} has joined already: {known.request.name}."
        elif request.number not in self.wanted:
            awaited = self.listed(self.wanted)
            what = f"{request.name} is not expected; the server is waiting for {awaited}."
        else:
            return self._compared(request) if request.connection == FIRST else None
        return ConfigError(what, where=self.number_flag, fix=self.number_fix)

    def _settings(self, request: JoinRequest) -> JoinReply:
        """Return what a peer without settings of its own needs, or why it gets nothing."""
        what = f"{request.name} asks for settings, and this listener has none."
        return JoinReply(refusal=fault_of(ConfigError(what, where=self.address_flag)))

    def _is_late(self) -> bool:
        """Return whether nobody joins any more."""
        return self._is_complete or self._is_closed

    def _note_joined(self, peer: Peer) -> None:
        """Take note of a peer with all its connections. Called with the lock held."""
        logger.info("%s has joined", peer.request.name)

    @abstractmethod
    def _compared(self, request: JoinRequest) -> ConfigError | None:
        """Return an error if a peer's facts differ from the other peers'. Mutates: self"""

    def _take(self, request: JoinRequest, connection: socket.socket) -> ConfigError | None:
        """Store a connection, or return why it is refused. Raises: OSError. Mutates: self"""
        peer = self._peers.get(request.number) or Peer(request)
        is_late = self._is_late() or peer.request.launch != request.launch
        if is_late or request.connection != len(peer.connections):
            what = f"{request.name} is too late: all have joined, or the server is ending."
            return ConfigError(what, where=self.address_flag, fix=FIX)
        # Sent before it is stored: once all are, other messages travel on it.
        handshake.send_message(connection, JoinReply(num_more=self._num_more))
        peer.connections.append(connection)
        self._peers[request.number] = peer
        if len(peer.connections) > self._num_more:
            self._note_joined(peer)
        return None
