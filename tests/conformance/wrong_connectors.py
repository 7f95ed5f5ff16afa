"""KV connectors and publishers for the conformance kit: right ones, and others that each break one
clause."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.interfaces.kv_connector import Buffer, KVConnector, Part, Parts, RanksFor, StoreFacts
from dovetail.interfaces.kv_event_publisher import EventBatch, KVEventPublisher
from dovetail.interfaces.plugin import Info
from dovetail_testing.memory_connector import MemoryIndex, MemoryStore


class Index(MemoryIndex):
    """A set of keys."""


class Store(MemoryStore):
    """A dictionary that may name blocks in another way."""

    def name(self, key: bytes) -> bytes:
        """Return the name of a block."""
        return key

    def read(self, key: bytes) -> Buffer | None:
        """Return a block."""
        return super().read(self.name(key))

    def write(self, key: bytes, block: Buffer) -> None:
        """Keep a block."""
        super().write(self.name(key), block)

    def drop(self, key: bytes) -> None:
        """Forget a block."""
        super().drop(self.name(key))


class RightConnector(KVConnector):
    """Host memory without a bound; the others derive from it."""

    info = Info(summary="a dictionary")
    index_class: type[Index] = Index
    store_class: type[Store] = Store

    def index(self, facts: StoreFacts) -> Index:
        """Return a set."""
        return self.index_class()

    def store(self, facts: StoreFacts) -> Store:
        """Return a dictionary."""
        return self.store_class()


class _Short(Store):
    def name(self, key: bytes) -> bytes:
        return key[:1]


class MixingConnector(RightConnector):
    """Names blocks by the first letter of their keys."""

    info = Info(summary="mixes keys")
    store_class = _Short


class _Everything(Index):
    def has(self, key: bytes) -> bool:
        return True


class BoastfulConnector(RightConnector):
    """Says that it has every block."""

    info = Info(summary="has everything")
    index_class = _Everything


class _Greedy(Index):
    def keep(self, key: bytes) -> bool:
        return super().keep(key) or True


class GreedyConnector(RightConnector):
    """Wants every block again and again."""

    info = Info(summary="keeps twice")
    index_class = _Greedy


class _Stubborn(Index):
    def lost(self, keys: Any) -> None:
        del keys


class StubbornConnector(RightConnector):
    """Counts on blocks that could not be read."""

    info = Info(summary="does not believe in losses")
    index_class = _Stubborn


class _Hoarder(Store):
    def drop(self, key: bytes) -> None:
        del key


class HoardingConnector(RightConnector):
    """Forgets nothing."""

    info = Info(summary="never drops")
    store_class = _Hoarder


class _Small(Store):
    def write(self, key: bytes, block: Buffer) -> None:
        super().write(key, block)
        while len(self.blocks) > 100:
            del self.blocks[next(iter(self.blocks))]


class ForgetfulConnector(RightConnector):
    """Has room for a hundred blocks, which its index does not know."""

    info = Info(summary="keeps a hundred blocks")
    store_class = _Small


class MortalConnector(RightConnector):
    """Keeps blocks in memory and says that they survive."""

    info = Info(summary="survives nothing")
    capabilities = frozenset({"survives"})


_SHARED: dict[bytes, Buffer] = {}


class SharedRanksConnector(RightConnector):
    """Has one place for the blocks of all ranks."""

    info = Info(summary="mixes ranks")

    def store(self, facts: StoreFacts) -> Store:
        """Return the one store."""
        store = super().store(facts)
        store.blocks = _SHARED
        return store


class _Torn(Store):
    def write(self, key: bytes, block: Buffer) -> None:
        self.blocks[key] = bytes(block)[:200]
        time.sleep(0.005)
        super().write(key, block)


class TearingConnector(RightConnector):
    """Shows blocks that are half written."""

    info = Info(summary="writes piece by piece")
    store_class = _Torn


_WRITTEN: dict[tuple[str, int], Store] = {}
"""The stores of all ranks of all engines, by identity and rank."""


class _Finding(Index):
    identity = ""

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Find what the first rank of any engine has, whatever the length of its pieces."""
        there = _WRITTEN[self.identity, 0].blocks
        self.keys |= set(keys) & there.keys()
        return self.identity if self.keys else ""


class _Gathering(Store):
    def gather(
        self, keys: Sequence[bytes], source: str, ranks_for: RanksFor
    ) -> Iterator[tuple[bytes, Parts]]:
        """Yield the parts of the ranks asked for, of two."""
        for key in keys:
            stores = [(rank, _WRITTEN[source, rank]) for rank in ranks_for(2)]
            yield (
                key,
                [Part(rank=rank, num_ranks=2, block=one.blocks[key]) for rank, one in stores],
            )


class CarelessPiecesConnector(RightConnector):
    """Exchanges pieces with engines whose pieces are of another length."""

    info = Info(summary="mixes lengths of pieces")
    capabilities = frozenset({"pieces"})
    store_class = _Gathering

    def index(self, facts: StoreFacts) -> Index:
        """Return an index that finds what others have."""
        index = _Finding()
        index.identity = facts.identity
        return index

    def store(self, facts: StoreFacts) -> Store:
        """Return a store that others read from."""
        store = super().store(facts)
        if not facts.engine:
            _WRITTEN[facts.identity, facts.rank] = store
        return store


class _KeepsNothing(_Everything):
    def keep(self, key: bytes) -> bool:
        return False


class _Nonsense(Store):
    def read(self, key: bytes) -> Buffer | None:
        return bytes(200)


class UnsealedFake(RightConnector):
    """Makes blocks up without a header."""

    info = Info(summary="brings nonsense")
    capabilities = frozenset({"fake"})
    index_class = _KeepsNothing
    store_class = _Nonsense


class RightPublisher(KVEventPublisher):
    """Counts batches."""

    info = Info(summary="counts batches")

    def __init__(self, options: Any, engine: int) -> None:
        self.count = 0

    def publish(self, batch: EventBatch) -> None:
        """Count a batch."""
        self.count += 1


class WaitingPublisher(RightPublisher):
    """Waits for somebody to listen."""

    info = Info(summary="waits")

    def publish(self, batch: EventBatch) -> None:
        """Wait a little."""
        time.sleep(0.002)


class OncePublisher(RightPublisher):
    """Cannot be closed twice."""

    info = Info(summary="closes once")

    def close(self) -> None:
        """Close."""
        del self.count
