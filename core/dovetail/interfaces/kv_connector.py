"""KVConnector: stores KV cache blocks outside the device and finds them again.

A connector has two sides. In the engine, its index says which blocks can be loaded and which are to
be saved. On every rank, its store writes and reads that rank's part of them. Both name a block by
the same key. The key covers everything that depends on the model, the cache layout and the tokens,
and blocks are verified after reading (`sealed_block`), so a connector need not know any of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.plugin import Plugin

RECOMPUTE, FAIL = "recompute", "fail"
"""What to do with a request whose blocks could not be loaded."""

Buffer = bytes | bytearray | memoryview


class TransferSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine uses its connector: whether it `saves` blocks there and `loads` them.

    `buffer_bytes` bounds, on each rank, the host memory for blocks being saved, and for loaded
    blocks that requests wait with; a single request may exceed it. A load that takes longer than
    `load_timeout_s` counts as failed. `engine_id` distinguishes engines that use one place.
    `identity` is a digest of everything that blocks depend on, except tokens and the cache layout.
    With `unit_tokens` blocks are exchanged in pieces of that many tokens and of single heads, so
    that engines with other block sizes and tensor-parallel sizes can use them (0: whole, between
    equal engines only). `engine` is this engine's number among those that serve the model.
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
    """What a connector knows of the blocks. `identity` is a digest of everything that their content
    depends on, except tokens: blocks of different identities are never exchanged. `block_bytes` is
    the size of a block as a store gets it, or the maximum if it gets pieces of `unit_tokens`
    tokens. An index serves `world_size` ranks, a store one rank. `engine` is this engine's number
    among those that serve the model."""

    identity: str
    block_bytes: int
    rank: int = 0
    world_size: int = 1
    engine_id: str = ""
    model: str = ""
    unit_tokens: int = 0
    engine: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a block that one of `num_ranks` ranks has written."""

    rank: int
    num_ranks: int
    block: Buffer


Parts = Sequence[Part] | None
RanksFor = Callable[[int], Sequence[int]]
"""Takes a number of ranks; returns the ones that have what this rank needs of a block."""


class StoreIndex(ABC):
    """The engine's side of a connector. One thread calls it; if the connector claims slow_look_up,
    another thread calls `has`. Its methods must not raise."""

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Return whether every rank's part of a block can probably be read. Changes nothing."""

    @abstractmethod
    def keep(self, key: bytes) -> bool:
        """Return whether to write a block that has become full; it then counts as stored. False if
        it is already stored, or not wanted. Mutates: self"""

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Prepare for `has` of these keys, which follows in the same thread. Return where the ranks
        can read what is not stored here ("": nowhere else). `params` are the request's
        kv_transfer_params. Mutates: self"""
        del keys, params
        return ""

    def ticket(self, num_tokens: int) -> dict[str, Any]:
        """Return the kv_transfer_params with which another engine can continue a request that has
        `num_tokens` tokens stored here; {}: unsupported."""
        del num_tokens
        return {}

    def used(self, keys: Sequence[bytes]) -> None:
        """Note that blocks were read, so they are not evicted next. Mutates: self"""
        del keys

    def lost(self, keys: Sequence[bytes]) -> None:
        """Discard these: one of them could not be read, or its content may be wrong. Mutates:
        self"""
        del keys

    def take_dropped(self) -> Sequence[bytes]:
        """Return, once, the keys whose blocks every rank's store must delete. Mutates: self"""
        return ()

    def close(self) -> None:
        """Release everything. May be called twice."""


class BlockStore(ABC):
    """A rank's side of a connector. `read` is called by one thread, all others by a second one."""

    @abstractmethod
    def read(self, key: bytes) -> Buffer | None:
        """Return a block as it was written; None if it is missing or incomplete. It is not changed
        afterwards. Raises: OSError"""

    def gather(
        self, keys: Sequence[bytes], source: str, ranks_for: RanksFor
    ) -> Iterator[tuple[bytes, Parts]]:
        """Yield every key once, in any order, with the parts of its block from which this rank's
        part can be assembled; None if it is missing. `source` comes from the index's `look`. Called
        like `read`. Raises: OSError

        The default reads each block as this rank wrote it.
        """
        del source, ranks_for
        for key in keys:
            block = self.read(key)
            yield key, None if block is None else (Part(rank=-1, num_ranks=0, block=block),)

    @abstractmethod
    def write(self, key: bytes, block: Buffer) -> None:
        """Store a block; its memory is not changed any more. Raises: OSError"""

    def drop(self, key: bytes) -> None:
        """Delete a block; a missing one is ignored. Raises: OSError. Mutates: self"""
        del key

    def close(self) -> None:
        """Release everything. May be called twice."""


class KVConnector(Plugin):
    """Makes the two sides of a store of KV blocks.

    `sample_options(folder)` are options for the connector's conformance tests; it may write into
    the folder and nowhere else.
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
        """Return options for a test. The default: none."""
        del folder
        return {}

    @abstractmethod
    def index(self, facts: StoreFacts) -> StoreIndex:
        """Return the engine's side. Raises: ConfigError"""

    @abstractmethod
    def store(self, facts: StoreFacts) -> BlockStore:
        """Return the side of the rank that the facts name. Raises: ConfigError"""
