"""Mooncake: blocks in a Mooncake store, memory of a cluster that several engines share.

A block is a value under its identity, key and rank. The store evicts as it likes: what is no longer
there is computed again. Source: Mooncake's documentation, "Mooncake Store Python API".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import Buffer, KVConnector, StoreFacts
from dovetail.interfaces.plugin import Info
from dovetail_plugins.stored_values import ValueClient, ValueIndex, ValueStore

EXTRA = "--kv-transfer-config.kv_connector_extra_config"
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

    interface_version = 1
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
        return "Mooncake is not installed. Fix: run `pip install mooncake-transfer-engine`."

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return a store's address, which is its name for a stand-in."""
        return {"master": folder}

    def index(self, facts: StoreFacts) -> ValueIndex:
        """Return the engine's side, which lends nothing. Raises: ConfigError"""
        return ValueIndex(MooncakeClient(self.options, lent_bytes=0), facts)

    def store(self, facts: StoreFacts) -> ValueStore:
        """Return a rank's side. Raises: ConfigError"""
        return ValueStore(MooncakeClient(self.options, lent_bytes=self.options.lent_bytes), facts)


class MooncakeClient(ValueClient):
    """A client of the store, which it lends memory."""

    def __init__(self, options: MooncakeOptions, *, lent_bytes: int) -> None:
        """Raises: ConfigError"""
        self._store = _joined(options, lent_bytes)

    def has(self, name: str) -> bool:
        """Return whether the value is there; a fault counts as no."""
        return bool(self._store.is_exist(name) == THERE)

    def get(self, name: str) -> Buffer | None:
        """Return a value; the store has nothing of no bytes, so these say that it is not there."""
        found: bytes = self._store.get(name)
        return found or None

    def put(self, name: str, value: Buffer) -> None:
        """Put a value. Raises: OSError"""
        status = self._store.put(name, bytes(value))
        if status:
            raise OSError(f"the Mooncake store did not take a block (status {status})")

    def remove(self, name: str) -> None:
        """Remove a value; the status of one that is not there says so, and is ignored."""
        self._store.remove(name)

    def close(self) -> None:
        """Leave the store."""
        self._store.close()


def _joined(options: MooncakeOptions, lent_bytes: int) -> Any:
    """Return a member of the store's cluster. Raises: ConfigError"""
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    if not options.master:
        raise ConfigError(
            "no master is named.", where=f"{EXTRA}.master", fix="name the store's, as HOST:PORT."
        )
    store = MooncakeDistributedStore()
    status = store.setup(
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
    return store
