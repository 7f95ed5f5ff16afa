"""PeerServer: gives a rank's blocks to other engines, from threads that run alongside its steps.

One thread answers local engines over ZeroMQ; each TCP connection that has proved the secret has its
own thread. Blocks are never changed, so nothing is copied under a lock.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import Buffer
from dovetail.interfaces.kv_eviction import KVEviction
from dovetail.observability.supervise import supervised_thread
from dovetail.processes.handshake import (
    HELLO_LIMIT_S,
    challenge,
    make_lasting,
    read_exactly,
    send_message,
)
from dovetail.processes.process import LENGTH
from dovetail.processes.wake import WakeSignal
from dovetail_plugins.kv_connectors._peer_memory import Carrier
from dovetail_plugins.kv_connectors._peer_messages import (
    QUESTIONS,
    BlockReply,
    Fetch,
    FindBlocks,
    GetFacts,
    Lock,
    PeerAddress,
    PeerFacts,
    Present,
    Question,
    Reply,
    make_local_folder,
    remove_file,
)

log = logging.getLogger(__name__)

QUIET_S = 0.3
"""Blocks that are waited for come one after the other; so long after the last one no more do."""
WAITING_POLL_MS = 2
CLOSE_WAIT_S = 2.0
MAX_QUESTION_BYTES = 1 << 26
MAX_WAIT_S = 60.0
IP_FLAG, PORT_FLAG = "--kv-transfer-config.kv_ip", "--kv-transfer-config.kv_port"


class HostBlocks:
    """A rank's blocks in host memory, those that an eviction leaves there. Any thread."""

    def __init__(self, eviction: KVEviction) -> None:
        self._lock = threading.Lock()
        self._eviction = eviction
        self._blocks: dict[bytes, Buffer] = {}
        self._changed_s = 0.0

    def put(self, key: bytes, block: Buffer) -> None:
        """Store a block that nobody changes. Mutates: self"""
        with self._lock:
            for old in self._eviction.add(key):
                self._blocks.pop(old, None)
            if self._eviction.has(key):
                self._blocks[key] = block
                self._changed_s = time.monotonic()

    def get(self, key: bytes) -> Buffer | None:
        """Return a block, None if it is missing. Mutates: self"""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._eviction.add(key)
            return block

    def drop(self, key: bytes) -> None:
        """Forget a block. Mutates: self"""
        with self._lock:
            self._blocks.pop(key, None)
            self._eviction.discard(key)

    def flags(self, keys: Sequence[bytes]) -> bytes:
        """Return a byte for each key: whether its block is there."""
        with self._lock:
            return bytes(key in self._blocks for key in keys)

    def is_quiet(self, since_s: float) -> bool:
        """Return whether no block has come for a while."""
        return time.monotonic() - max(self._changed_s, since_s) > QUIET_S

    def clear(self) -> None:
        """Forget everything. Mutates: self"""
        with self._lock:
            self._blocks.clear()


class PeerServer:
    """Serves a rank's blocks at a place: its socket on this machine, and with a secret its port."""

    def __init__(
        self,
        host_blocks: HostBlocks,
        facts: PeerFacts,
        place: PeerAddress,
        secret: bytes | None,
        carrier: Carrier,
    ) -> None:
        """Raises: ConfigError"""
        self._host_blocks = host_blocks
        self._facts = facts
        self._place = place
        self._secret = secret
        self._carrier = carrier
        self._waiting: list[tuple[bytes, FindBlocks, float]] = []
        self._connections: set[socket.socket] = set()
        self._listener = None if secret is None else _listening(place)
        try:
            make_local_folder()
            self._lock = Lock(place.lock_path)
        except OSError as error:
            self._close_listener()
            raise ConfigError(
                f"another process on this machine exchanges KV blocks at port {place.port}.",
                where=PORT_FLAG,
                fix="give each engine its own kv_port or kv_rank.",
            ) from error
        self._is_over = WakeSignal()
        self._start()

    def _start(self) -> None:
        import zmq

        remove_file(self._place.socket_path)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"ipc://{self._place.socket_path}")
        self._threads = [
            supervised_thread(
                "kv-peers", self._serve_local, is_over=self._is_over, end=self._close_local
            )
        ]
        if self._listener is not None:
            self._threads.append(
                supervised_thread("kv-peers-tcp", self._accept, is_over=self._is_over)
            )
        for thread in self._threads:
            thread.start()

    # Over ZeroMQ

    def _serve_local(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._is_over, zmq.POLLIN)
        while not self._is_over.is_set():
            found = dict(poller.poll(WAITING_POLL_MS if self._waiting else None))
            if self._socket in found:
                sender, *_, data = self._socket.recv_multipart()
                self._take(sender, data)
            self._answer_waiting()

    def _close_local(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def _take(self, sender: bytes, data: bytes) -> None:
        """Answer a question, or let it wait. Mutates: self"""
        try:
            question: Question = QUESTIONS.decode(data)
        except msgspec.MsgspecError as error:
            log.warning("a question about KV blocks was not understood: %s", error)
            return
        if isinstance(question, FindBlocks) and question.wait_s > 0:
            self._waiting.append((sender, question, time.monotonic()))
        else:
            self._send(sender, self._answer(question))

    def _answer_waiting(self) -> None:
        still = []
        for sender, question, began_s in self._waiting:
            if self._is_ready(question, began_s):
                self._send(sender, self._answer(question))
            else:
                still.append((sender, question, began_s))
        self._waiting = still

    def _send(self, sender: bytes, reply: Reply) -> None:
        import zmq

        with contextlib.suppress(zmq.ZMQError):  # the requester is gone
            self._socket.send_multipart((sender, msgspec.msgpack.encode(reply)), zmq.NOBLOCK)

    # Over TCP

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._is_over.is_set():
            if not self._is_over.wait_for(self._listener):
                return
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:  # the client has gone again
                continue
            except OSError:  # too many open files, for example: tried again
                if self._is_over.is_set():
                    return
                raise
            threading.Thread(
                target=self._serve_peer, args=(connection, address), name="kv-peer", daemon=True
            ).start()

    def _serve_peer(self, connection: socket.socket, address: Any) -> None:
        assert self._secret is not None
        self._connections.add(connection)
        try:
            connection.settimeout(HELLO_LIMIT_S)
            challenge(connection, self._secret)
            make_lasting(connection)
            while not self._is_over.is_set():
                question = _question_from(connection)
                began_s = time.monotonic()
                while not self._is_ready(question, began_s) and not self._is_over.is_set():
                    time.sleep(WAITING_POLL_MS / 1000)
                send_message(connection, self._answer(question))
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            log.debug("the connection with %s ended: %s", address, error)
        finally:
            self._connections.discard(connection)
            connection.close()

    # Requests

    def _is_ready(self, question: Question, began_s: float) -> bool:
        """Return whether the answer need not wait any longer."""
        if not isinstance(question, FindBlocks) or question.identity != self._facts.identity:
            return True
        waited_s = time.monotonic() - began_s
        if waited_s >= min(question.wait_s, MAX_WAIT_S) or self._host_blocks.is_quiet(began_s):
            return True
        return all(self._host_blocks.flags(question.keys))

    def _answer(self, question: Question) -> Reply:
        match question:
            case GetFacts():
                return self._facts
            case FindBlocks(identity=identity, keys=keys):
                is_same = identity == self._facts.identity
                return Present(self._host_blocks.flags(keys) if is_same else bytes(len(keys)))
            case Fetch(identity=identity, keys=keys, memory=memory):
                if identity != self._facts.identity:
                    return BlockReply((-1,) * len(keys))
                blocks = [self._host_blocks.get(key) for key in keys]
                return self._given(blocks, memory) if memory else _sent(blocks)

    def _given(self, blocks: Sequence[Buffer | None], memory: str) -> BlockReply:
        """Write blocks into the requester's memory, or send them if that cannot be reached."""
        try:
            return BlockReply(self._carrier.lay(blocks, memory))
        except (OSError, ValueError) as error:
            log.debug("a peer's memory cannot be reached, blocks are sent: %s", error)
            return _sent(blocks)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        """End the threads. May be called twice."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(CLOSE_WAIT_S)
        if not any(thread.is_alive() for thread in self._threads):
            self._is_over.close()
        self._close_listener()
        remove_file(self._place.socket_path)
        self._lock.close()


def _sent(blocks: Sequence[Buffer | None]) -> BlockReply:
    sizes = tuple(-1 if block is None else len(block) for block in blocks)
    return BlockReply(sizes, tuple(bytes(block) for block in blocks if block is not None))


def _question_from(connection: socket.socket) -> Question:
    """Return the next question. Raises: OSError, EOFError, MsgspecError"""
    (length,) = LENGTH.unpack(read_exactly(connection, LENGTH.size))
    if length > MAX_QUESTION_BYTES:
        raise EOFError(f"a question of {length} bytes")
    question: Question = QUESTIONS.decode(read_exactly(connection, length))
    return question


def _listening(place: PeerAddress) -> socket.socket:
    """Return a listening socket. Raises: ConfigError"""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        listener = socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"{place.name} cannot be listened at: {error.strerror or error}.",
            where=IP_FLAG,
            fix="name an address of this machine, and a port that is free.",
        ) from error
    listener.setblocking(False)
    return listener
