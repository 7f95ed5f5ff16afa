"""PeerEngine: this engine's client for another engine's blocks.

Any failure is an OSError that costs its blocks; the engine is then left alone for a while. One
thread uses it.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from dovetail.interfaces.kv_connector import Buffer, Part, Parts, RanksFor
from dovetail.processes.handshake import make_lasting, read_exactly, respond, send_message
from dovetail.processes.process import LENGTH
from dovetail_plugins.kv_connectors._peer_memory import BATCH_BYTES, Carrier, Landing, landing_bytes
from dovetail_plugins.kv_connectors._peer_messages import (
    REPLIES,
    BlockReply,
    Fetch,
    FindBlocks,
    GetFacts,
    PeerAddress,
    PeerFacts,
    Present,
    Question,
    Reply,
    is_served,
)

log = logging.getLogger(__name__)

CONNECT_LIMIT_S, ASK_LIMIT_S = 3.0, 10.0
SLICE_S = 0.05
"""A peer on this machine that has ended is noticed within this time."""
LEFT_ALONE_S = 2.0
"""How long an engine that did not answer is left alone, unless it was absent and has since started
on this machine."""


class Wire(Protocol):
    """A way to one rank of another engine."""

    def ask(self, question: Question, limit_s: float) -> Reply:
        """Return the answer. Raises: OSError, EOFError, MsgspecError"""

    def close(self) -> None:
        """End it."""


class LocalWire:
    """To a rank on this machine, by ZeroMQ."""

    def __init__(self, place: PeerAddress) -> None:
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

    def __init__(self, place: PeerAddress, secret: bytes) -> None:
        """Raises: OSError"""
        address = (place.host, place.port)
        self._connection = socket.create_connection(address, timeout=CONNECT_LIMIT_S)
        try:
            respond(self._connection, secret)
            make_lasting(self._connection)
        except (OSError, EOFError) as error:
            self._connection.close()
            raise ConnectionError(str(error)) from error

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
    """One rank of another engine: its wire, and memory that it lays blocks into."""

    def __init__(self, place: PeerAddress, secret: bytes | None, carrier: Carrier | None) -> None:
        self.place = place
        self._secret = secret
        self._carrier = carrier
        self.block_bytes = 0
        self._wire: Wire | None = None
        self._landing: Landing | None = None

    def ask(self, question: Question, limit_s: float = ASK_LIMIT_S) -> Any:
        """Return the answer. Raises: OSError"""
        try:
            return self._open().ask(question, limit_s)
        except (EOFError, msgspec.MsgspecError) as error:
            self.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> Wire:
        """Return the connection, with memory for the blocks. Raises: OSError. Mutates: self"""
        if self._wire is not None:
            return self._wire
        is_here = is_served(self.place)
        if is_here:
            self._wire = LocalWire(self.place)
        elif self._secret is not None:
            self._wire = TcpWire(self.place, self._secret)
        else:
            raise ConnectionError(
                "no engine of this machine is there, and without a secret_file others are not asked"
            )
        if self._carrier is not None and self.block_bytes:
            num_bytes = landing_bytes(self.block_bytes)
            try:
                self._landing = self._carrier.landing(num_bytes, is_here=is_here)
            except OSError as error:
                log.warning("there is no memory for KV blocks of peers: %s", error)
        return self._wire

    def blocks(self, identity: str, keys: tuple[bytes, ...]) -> list[Buffer | None]:
        """Return blocks, valid until the next call. Raises: OSError"""
        self._open()
        name = "" if self._landing is None else self._landing.name()
        reply: BlockReply = self.ask(Fetch(identity=identity, keys=keys, memory=name))
        if len(reply.sizes) != len(keys):
            raise ConnectionError("it did not answer what it was asked")
        if self._landing is None or reply.data:
            data = iter(reply.data)
            return [None if size < 0 else next(data) for size in reply.sizes]
        if any(size > 0 for size in reply.sizes):
            self._landing.wait(ASK_LIMIT_S)
        return _laid(self._landing.view, reply.sizes)

    def close(self) -> None:
        """Let go of wire and memory. May be called twice."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._landing is not None:
            self._landing.close()
            self._landing = None


def _laid(view: memoryview, sizes: Sequence[int]) -> list[Buffer | None]:
    """Return the blocks that are concatenated in a buffer."""
    found: list[Buffer | None] = []
    start = 0
    for size in sizes:
        found.append(None if size < 0 else view[start : start + size])
        start += max(0, size)
    return found


class PeerEngine:
    """An engine whose first rank listens at a place; the others use the following ports."""

    def __init__(
        self,
        place: PeerAddress,
        own: PeerFacts,
        secret: bytes | None,
        carrier: Carrier | None = None,
    ) -> None:
        """Without a `carrier` blocks come in messages."""
        self.place = place
        self._own = own
        self._secret = secret
        self._carrier = carrier
        self._ranks: list[_Rank] = []
        self._is_same = False
        self._batch = 1
        self._left_alone_until_s = 0.0
        self._absent: list[PeerAddress] = []
        self._is_logged = False

    @property
    def is_left_alone(self) -> bool:
        """Return whether the engine has just not answered, and has not started since."""
        has_started = bool(self._absent) and all(map(is_served, self._absent))
        return time.monotonic() < self._left_alone_until_s and not has_started

    def which(self, keys: Sequence[bytes], wait_s: float) -> frozenset[bytes]:
        """Return the keys of blocks that every rank has its part of; none if the engine does not
        answer. Mutates: self"""
        try:
            if not self._meets():
                return frozenset()
            question = FindBlocks(identity=self._own.identity, keys=tuple(keys), wait_s=wait_s)
            found = set(keys)
            for rank in self._ranks:
                reply: Present = rank.ask(question, ASK_LIMIT_S + wait_s)
                found &= {key for key, flag in zip(keys, reply.flags, strict=True) if flag}
        except (OSError, ValueError, AttributeError) as error:
            self._give_up(error)
            return frozenset()
        return frozenset(found)

    def fetch(self, keys: Sequence[bytes], ranks_for: RanksFor) -> Iterator[tuple[bytes, Parts]]:
        """Yield every key with the parts of its block, valid until the next one is requested.
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
            facts = self._facts()
            host, port = self.place.host, self.place.port
            places = [PeerAddress(host, port + number) for number in range(facts.num_ranks)]
            self._ranks = [_Rank(place, self._secret, self._carrier) for place in places]
            for rank in self._ranks:
                rank.block_bytes = facts.block_bytes
            self._batch = max(1, BATCH_BYTES // facts.block_bytes)
            self._log_mismatch(facts)
            self._is_same = (facts.identity, facts.unit_tokens) == (
                self._own.identity,
                self._own.unit_tokens,
            )
        return self._is_same

    def _facts(self) -> PeerFacts:
        """Return the peer's facts. Raises: OSError"""
        first = _Rank(self.place, self._secret, None)
        try:
            facts: PeerFacts = first.ask(GetFacts())
        finally:
            first.close()
        return facts

    def _log_mismatch(self, facts: PeerFacts) -> None:
        """Log once why the peer has no usable blocks."""
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
        if not self._is_logged:
            log.warning("%s did not give KV blocks: %s", self.place.name, error)
        self._is_logged = True
        places = [rank.place for rank in self._ranks] or [self.place]
        self._absent = [place for place in places if not is_served(place)]
        self.close()
        self._left_alone_until_s = time.monotonic() + LEFT_ALONE_S

    def close(self) -> None:
        """Let go of everything; the next question begins anew. May be called twice."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []
