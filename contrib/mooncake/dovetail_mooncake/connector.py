"""Mooncake: blocks in a Mooncake store, memory of a cluster that several engines share.

A block is a value under its identity, key and rank. The store evicts as it likes: what is no longer
there is computed again. Source: Mooncake's documentation, "Mooncake Store Python API".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts, StoreIndex
from dovetail.interfaces.plugin import Info

EXTRA = "--kv-transfer-config.kv_connector_extra_config"
MOST_REMEMBERED = 1 << 18
IDENTITY_LETTERS = 24
THERE = 1
"""What `is_exist` returns for a key that is there; 0 for one that is not, and less for a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeOptions:
    """Where the store is, and what this engine lends it."""

    master: str = field(default="", metadata={"help": "HOST:PORT of the store's master"})
    metadata: str = field(
        default="P2PHANDSHAKE", metadata={"help": "address of the metadata server"}
    )
    host: str = field(default="localhost", metadata={"help": "this machine's name or address"})
    protocol: str = field(default="tcp", metadata={"help": "tcp or rdma"})
    devices: str = field(default="", metadata={"help": "RDMA devices, with commas between"})
    lent_bytes: int = field(
        default=1 << 30,
        metadata={"help": "memory that each rank lends the store", "unit": "bytes", "ge": 0},
    )
    buffer_bytes: int = field(
        default=128 << 20,
        metadata={"help": "memory for values on their way", "unit": "bytes", "ge": 1},
    )


class Mooncake(KVConnector):
    """A client of the store beside every rank, and one in the engine."""

    info = Info(
        summary="a Mooncake store that several engines share",
        source="https://kvcache-ai.github.io/Mooncake/",
        requires=("mooncake.store",),
    )
    capabilities = frozenset({"shared", "slow_look_up"})
    Options = MooncakeOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return how to get Mooncake where it is not installed."""
        if super().unavailable_reason() is None:
            return None
        return "Mooncake is not installed; run `pip install mooncake-transfer-engine`"

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return a store's address, which is its name for a stand-in."""
        return {"master": folder}

    def index(self, facts: StoreFacts) -> MooncakeIndex:
        """Return the engine's side, which lends nothing. Raises: ConfigError"""
        return MooncakeIndex(_client(self.options, lent_bytes=0), facts)

    def store(self, facts: StoreFacts) -> MooncakeStore:
        """Return a rank's side. Raises: ConfigError"""
        client = _client(self.options, lent_bytes=self.options.lent_bytes)
        return MooncakeStore(client, facts)


def _client(options: MooncakeOptions, *, lent_bytes: int) -> Any:
    """Return a client of the store. Raises: ConfigError"""
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    if not options.master:
        raise ConfigError(
            "no master is named.", where=f"{EXTRA}.master", fix="name the store's, as HOST:PORT."
        )
    client = MooncakeDistributedStore()
    status = client.setup(
        options.host,
        options.metadata,
        lent_bytes,
        options.buffer_bytes,
        options.protocol,
        options.devices,
        options.master,
    )
    if status:
        raise ConfigError(
            f"the Mooncake store at {options.master} cannot be joined (status {status}).",
            where=f"{EXTRA}.master",
            fix="see whether its master and metadata server run, and what this process has logged.",
        )
    return client


def _name(facts: StoreFacts, key: bytes, rank: int) -> str:
    """Return the name of a rank's part of a block."""
    identity = facts.identity[:IDENTITY_LETTERS]
    return f"dovetail/{identity}/{key.hex()}/{rank}of{facts.world_size}"


class MooncakeIndex(StoreIndex):
    """Asks the store what is there."""

    def __init__(self, client: Any, facts: StoreFacts) -> None:
        self._client = client
        self._facts = facts
        self._written: OrderedDict[bytes, None] = OrderedDict()
        self._missed: deque[bytes] = deque(maxlen=MOST_REMEMBERED)

    def has(self, key: bytes) -> bool:
        """Return whether all ranks' parts are there; one that is not counts as written no more."""
        ranks = range(self._facts.world_size)
        names = (_name(self._facts, key, rank) for rank in ranks)
        is_there = all(self._client.is_exist(name) == THERE for name in names)
        if not is_there:
            self._missed.append(key)
        return is_there

    def keep(self, key: bytes) -> bool:
        """Return whether this engine has not had the block written lately. Mutates: self"""
        while self._missed:
            self._written.pop(self._missed.popleft(), None)
        is_new = key not in self._written
        self._written[key] = None
        self._written.move_to_end(key)
        if len(self._written) > MOST_REMEMBERED:
            self._written.popitem(last=False)
        return is_new

    def lost(self, keys: Sequence[bytes]) -> None:
        """Have these written again. Mutates: self"""
        for key in keys:
            self._written.pop(key, None)

    def close(self) -> None:
        """Leave the store. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class MooncakeStore(BlockStore):
    """Puts and gets one rank's parts."""

    def __init__(self, client: Any, facts: StoreFacts) -> None:
        self._client = client
        self._facts = facts

    def read(self, key: bytes) -> Buffer | None:
        """Return a block; the store has nothing of no bytes, so these say that it is not there."""
        found: bytes = self._client.get(self._own(key))
        return found or None

    def write(self, key: bytes, block: Buffer) -> None:
        """Put a block, unless it is there. Raises: OSError"""
        name = self._own(key)
        if self._client.is_exist(name) == THERE:
            return
        status = self._client.put(name, bytes(block))
        if status:
            raise OSError(f"the Mooncake store did not take a block (status {status})")

    def drop(self, key: bytes) -> None:
        """Remove a block; the status of one that is not there says so, and is ignored."""
        self._client.remove(self._own(key))

    def _own(self, key: bytes) -> str:
        return _name(self._facts, key, self._facts.rank)

    def close(self) -> None:
        """Leave the store. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
