"""PeerEngine: another engine's blocks, as this one asks for them.

Whatever goes wrong with it is an OSError that costs its blocks; it is then left alone for a while.
One thread uses it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from dovetail.handshake import make_lasting, read_exactly, respond, send_message
from dovetail.interfaces.kv_connector import Buffer, Part, Parts, RanksFor
from dovetail.process import LENGTH
from dovetail_plugins.kv_connectors._peer_messages import (
    REPLIES,
    SHARED_MEMORY,
    Blocks,
    Facts,
    Fetch,
    Hello,
    Place,
    Present,
    Question,
    Reply,
    Which,
    is_served,
    remove_file,
)

log = logging.getLogger(__name__)

CONNECT_LIMIT_S, ASK_LIMIT_S = 3.0, 10.0
SLICE_S = 0.05
"""A peer on this machine that has ended is noticed within this time."""
LEFT_ALONE_S = 2.0
"""How long nothing is asked of an engine that did not answer."""
BATCH_BYTES = 1 << 24
"""About how much is asked for at once."""


class Wire(Protocol):
    """A way to one rank of another engine."""

    def ask(self, question: Question, limit_s: float) -> Reply:
        """Return the answer. Raises: OSError, EOFError, MsgspecError"""

    def close(self) -> None:
        """End it."""


class LocalWire:
    """To a rank on this machine, by ZeroMQ."""

    def __init__(self, place: Place) -> None:
        import zmq

        self._place = place
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{place.socket_path}")

    def ask(self, question: Question, limit_s: float) -> Reply:
        """Return the answer. Raises: OSError when the rank is gone or too slow"""
        self._socket.send(msgspec.msgpack.encode(question))
        deadline_s = time.monotonic() + limit_s
        while not self._socket.poll(int(SLICE_S * 1000)):
            if not is_served(self._place):
                raise ConnectionError("it has ended")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"it did not answer in {limit_s:g} s")
        reply: Reply = REPLIES.decode(self._socket.recv())
        return reply

    def close(self) -> None:
        """End it."""
        self._socket.close(linger=0)
        self._context.term()


class TcpWire:
    """To a rank on another machine, which proves the secret."""

    def __init__(self, place: Place, secret: bytes) -> None:
        """Raises: OSError, EOFError"""
        address = (place.host, place.port)
        self._connection = socket.create_connection(address, timeout=CONNECT_LIMIT_S)
        try:
            respond(self._connection, secret)
            make_lasting(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def ask(self, question: Question, limit_s: float) -> Reply:
        """Return the answer. Raises: OSError, EOFError, MsgspecError"""
        self._connection.settimeout(limit_s)
        send_message(self._connection, question)
        (length,) = LENGTH.unpack(read_exactly(self._connection, LENGTH.size))
        reply: Reply = REPLIES.decode(read_exactly(self._connection, length))
        return reply

    def close(self) -> None:
        """End it."""
        self._connection.close()


class _Rank:
    """One rank of another engine: its wire, and memory that it writes blocks into."""

    def __init__(self, place: Place, secret: bytes | None) -> None:
        self.place = place
        self._secret = secret
        self.block_bytes = 0
        self._wire: Wire | None = None
        self._name = ""
        self._memory: mmap.mmap | None = None

    def ask(self, question: Question, limit_s: float = ASK_LIMIT_S) -> Any:
        """Return the answer. Raises: OSError"""
        try:
            if self._wire is None:
                self._wire = self._opened()
            return self._wire.ask(question, limit_s)
        except (EOFError, msgspec.MsgspecError) as error:
            self.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _opened(self) -> Wire:
        if is_served(self.place):
            return LocalWire(self.place)
        if self._secret is None:
            raise ConnectionError(
                "no engine of this machine is there, and without a secret_file others are not asked"
            )
        return TcpWire(self.place, self._secret)

    def blocks(self, identity: str, keys: tuple[bytes, ...]) -> list[Buffer | None]:
        """Return blocks, valid until the next call. Raises: OSError"""
        if self._wire is None:
            self._wire = self._opened()
        name = self._shared() if isinstance(self._wire, LocalWire) else ""
        reply: Blocks = self.ask(Fetch(identity=identity, keys=keys, memory=name))
        if len(reply.sizes) != len(keys):
            raise ConnectionError("it did not answer what it was asked")
        if not name:
            data = iter(reply.data)
            return [None if size < 0 else next(data) for size in reply.sizes]
        assert self._memory is not None
        view, start = memoryview(self._memory), 0
        found: list[Buffer | None] = []
        for size in reply.sizes:
            found.append(None if size < 0 else view[start : start + size])
            start += max(0, size)
        return found

    def _shared(self) -> str:
        """Return the name of a file in shared memory with room for a batch; "" where there is no
        such memory: blocks then come in messages. Mutates: self"""
        if self._memory is None:
            self._name = f"dovetail-kv-{secrets.token_hex(8)}"
            path, num_bytes = SHARED_MEMORY / self._name, 2 * max(BATCH_BYTES, self.block_bytes)
            try:
                number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    os.posix_fallocate(number, 0, num_bytes)
                    self._memory = mmap.mmap(number, num_bytes)
                finally:
                    os.close(number)
            except OSError as error:
                remove_file(path)
                log.warning("%s has no room for KV blocks: %s", SHARED_MEMORY, error)
                return ""
        return self._name

    def close(self) -> None:
        """Let go of wire and memory. May be called twice."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._memory is not None:
            remove_file(SHARED_MEMORY / self._name)
            with contextlib.suppress(BufferError):  # blocks of it are still looked at
                self._memory.close()
            self._memory = None


class PeerEngine:
    """An engine whose first rank is met at a place; the others at the ports behind it."""

    def __init__(self, place: Place, own: Facts, secret: bytes | None) -> None:
        self.place = place
        self._own = own
        self._secret = secret
        self._ranks: list[_Rank] = []
        self._is_same = False
        self._batch = 1
        self._left_alone_until_s = 0.0
        self._has_told = False

    @property
    def is_left_alone(self) -> bool:
        """Return whether the engine has just not answered."""
        return time.monotonic() < self._left_alone_until_s

    def which(self, keys: Sequence[bytes], wait_s: float) -> frozenset[bytes]:
        """Return the keys of blocks of which every rank has its part; none where the engine does
        not answer. Mutates: self"""
        try:
            if not self._meets():
                return frozenset()
            question = Which(identity=self._own.identity, keys=tuple(keys), wait_s=wait_s)
            found = set(keys)
            for rank in self._ranks:
                reply: Present = rank.ask(question, ASK_LIMIT_S + wait_s)
                found &= {key for key, flag in zip(keys, reply.flags, strict=True) if flag}
        except (OSError, ValueError, AttributeError) as error:
            self._give_up(error)
            return frozenset()
        return frozenset(found)

    def fetch(self, keys: Sequence[bytes], ranks_for: RanksFor) -> Iterator[tuple[bytes, Parts]]:
        """Yield every key with the parts of its block, valid until the next one is asked for.
        Raises: OSError"""
        try:
            if not self._meets():
                raise ConnectionError(f"{self.place.name} has no blocks of this model")
            chosen = ranks_for(len(self._ranks))
            for start in range(0, len(keys), self._batch):
                some = tuple(keys[start : start + self._batch])
                parts = [self._ranks[rank].blocks(self._own.identity, some) for rank in chosen]
                yield from zip(some, self._joined(chosen, parts), strict=True)
        except (OSError, AttributeError) as error:
            self._give_up(error)
            raise ConnectionError(f"{self.place.name}: {error}") from error

    def _joined(
        self, chosen: Sequence[int], blocks: Sequence[Sequence[Buffer | None]]
    ) -> Iterator[Parts]:
        """Yield the parts of one block after the other."""
        num_ranks = len(self._ranks)
        for of_ranks in zip(*blocks, strict=True):
            if any(block is None for block in of_ranks):
                yield None
                continue
            yield [
                Part(rank=rank, num_ranks=num_ranks, block=block)
                for rank, block in zip(chosen, of_ranks, strict=True)
                if block is not None
            ]

    def _meets(self) -> bool:
        """Return whether the engine is there and has the same model. Raises: OSError. Mutates:
        self"""
        if not self._ranks:
            first = _Rank(self.place, self._secret)
            facts: Facts = first.ask(Hello())
            host, port = self.place.host, self.place.port
            others = [Place(host, port + n) for n in range(1, facts.num_ranks)]
            self._ranks = [first, *(_Rank(place, self._secret) for place in others)]
            for rank in self._ranks:
                rank.block_bytes = facts.block_bytes
            self._batch = max(1, BATCH_BYTES // facts.block_bytes)
            self._told(facts)
            self._is_same = (facts.identity, facts.unit_tokens) == (
                self._own.identity,
                self._own.unit_tokens,
            )
        return self._is_same

    def _told(self, facts: Facts) -> None:
        """Say once why nothing will be found there."""
        if facts.identity != self._own.identity:
            log.warning("%s has another model, other types or flags", self.place.name)
        elif facts.unit_tokens != self._own.unit_tokens:
            log.warning(
                "%s exchanges pieces of %d tokens, this engine of %d: set kv_unit_tokens to the "
                "same number on both",
                *(self.place.name, facts.unit_tokens, self._own.unit_tokens),
            )

    def _give_up(self, error: BaseException) -> None:
        """Leave the engine alone for a while. Mutates: self"""
        if not self._has_told:
            log.warning("%s did not give KV blocks: %s", self.place.name, error)
        self._has_told = True
        self.close()
        self._left_alone_until_s = time.monotonic() + LEFT_ALONE_S

    def close(self) -> None:
        """Let go of everything; the next question begins anew. May be called twice."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []
