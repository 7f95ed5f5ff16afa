"""KVConnector: where blocks of the KV cache are kept beside the device, and found again.

A connector has two sides. In the engine its index says which blocks can be brought from elsewhere
and which are to be kept there; beside every rank its store writes and reads that rank's part of
them. Both name a block by the same key. What depends on the model, its layout and the tokens is in
the key, and what is read is checked before it is used (`sealed_block`), so that a connector need
know nothing of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.selection import Selection

RECOMPUTE, FAIL = "recompute", "fail"
"""What becomes of a request whose blocks could not be brought."""

Buffer = bytes | bytearray | memoryview


class TransferSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine uses its connector: whether it `saves` blocks there and `loads` them.

    `buffer_bytes` bounds, on each rank, the host memory for blocks on their way to a store, and for
    those that requests wait with; a single request's may be more. A load that takes longer than
    `load_timeout_s` counts as failed. `engine_id` tells engines apart that use one place.
    `identity` stands for all that blocks depend on beside tokens and the layout of the cache.
    With `unit_tokens` blocks travel as pieces of so many tokens and of single heads, so that
    engines with other block sizes and tensor-parallel sizes can exchange them (0: whole, between
    equals alone). This is number `engine` of the engines that serve one model together.
    """

    connector: Selection
    identity: str
    saves: bool = True
    loads: bool = True
    failure_policy: str = RECOMPUTE
    buffer_bytes: int = 10**9
    load_timeout_s: float = 30.0
    engine_id: str = ""
    unit_tokens: int = 0
    engine: int = 0


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a connector knows of the blocks. `identity` stands for all that their content depends
    on beside tokens: blocks of different identities are never exchanged. `block_bytes` is the size
    of a block as a store gets it, or the most where it gets pieces of `unit_tokens` tokens. The
    index is that of `world_size` ranks, a store that of one. The engine is number `engine` of
    those that serve one model together.
    """

    identity: str
    block_bytes: int
    rank: int = 0
    world_size: int = 1
    engine_id: str = ""
    model: str = ""
    unit_tokens: int = 0
    engine: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one of `num_ranks` ranks has written of a block."""

    rank: int
    num_ranks: int
    block: Buffer


Parts = Sequence[Part] | None
RanksFor = Callable[[int], Sequence[int]]
"""Says which of so many ranks have what a rank here needs of a block."""


class StoreIndex(ABC):
    """The engine's side of a connector. One thread calls it, and another calls `has` where the
    connector claims slow_look_up. Nothing here raises."""

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Return whether every rank's part of a block can probably be read. Changes nothing."""

    @abstractmethod
    def keep(self, key: bytes) -> bool:
        """Return whether a block that has become full is to be written; it then counts as there.
        False where it is there already, or is not wanted. Mutates: self"""

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Prepare for `has` of these keys, which follows in the same thread; return where the ranks
        are to read what is not here ("": nowhere else). `params` are the request's
        kv_transfer_params. Mutates: self"""
        del keys, params
        return ""

    def ticket(self, num_tokens: int) -> dict[str, Any]:
        """Return the kv_transfer_params by which another engine goes on with a request, of which so
        many tokens are kept here; {}: nothing tells."""
        del num_tokens
        return {}

    def used(self, keys: Sequence[bytes]) -> None:
        """Note that blocks were read: they are not the next to go. Mutates: self"""
        del keys

    def lost(self, keys: Sequence[bytes]) -> None:
        """Count on these no more: one of them could not be read, or may hold something wrong.
        Mutates: self"""
        del keys

    def take_dropped(self) -> Sequence[bytes]:
        """Return the keys whose blocks every rank's store is to forget, once. Mutates: self"""
        return ()

    def close(self) -> None:
        """Let go of everything. May be called twice."""


class BlockStore(ABC):
    """A rank's side of a connector. `read` is called by one thread, all others by a second one."""

    @abstractmethod
    def read(self, key: bytes) -> Buffer | None:
        """Return a block as it was written; None where it is not there, or not whole. It is not
        changed afterwards. Raises: OSError"""

    def gather(
        self, keys: Sequence[bytes], source: str, ranks_for: RanksFor
    ) -> Iterator[tuple[bytes, Parts]]:
        """Yield every key once, in any order, with the parts of its block, by which this rank's can
        be made; None where it is not there. `source` is what the index's `look` said. Called as
        `read` is. Raises: OSError

        The default: each is read, as this rank wrote it.
        """
        del source, ranks_for
        for key in keys:
            block = self.read(key)
            yield key, None if block is None else (Part(rank=-1, num_ranks=0, block=block),)

    @abstractmethod
    def write(self, key: bytes, block: Buffer) -> None:
        """Keep a block; nobody changes its memory any more. Raises: OSError"""

    def drop(self, key: bytes) -> None:
        """Forget a block; one that is not there is ignored. Raises: OSError. Mutates: self"""
        del key

    def close(self) -> None:
        """Let go of everything. May be called twice."""


class KVConnector(Plugin):
    """Makes the two sides of a store of KV blocks.

    `sample_options(folder)` are options with which the conformance kit can try the connector; it
    may write into the folder and nowhere else.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "survives": "finds after a restart what was written before",
        "shared": "finds what other engines have written",
        "slow_look_up": "looking a block up may take long, so that a thread beside the steps does",
        "several": "its options name other connectors",
        "peers": "asks other engines for blocks: look and gather find them",
        "pieces": "exchanges pieces of blocks with engines of other block sizes and ranks",
        "fake": "what is read is not what was written: for measurements alone",
        "has_ports": "uses kv_ip, kv_port, kv_rank and kv_parallel_size",
    }

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, Any]:
        """Return options for a try. The default: none."""
        del folder
        return {}

    @abstractmethod
    def index(self, facts: StoreFacts) -> StoreIndex:
        """Return the engine's side. Raises: ConfigError"""

    @abstractmethod
    def store(self, facts: StoreFacts) -> BlockStore:
        """Return the side of the rank that the facts name. Raises: ConfigError"""
