"""Multi: several connectors in order. A block is read from the first one that has it, and stored by
every one that wants it.

The interface's source of a read is a single string here: the sources of all connectors, as JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.kv_connector import (
    BlockStore,
    Buffer,
    KVConnector,
    Parts,
    RanksFor,
    StoreFacts,
    StoreIndex,
)
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value

log = logging.getLogger(__name__)

_DROP = b"multi"
"""Prefix, with a connector's number, of the key of a block that this connector is to drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiOptions:
    """The connectors, in the order in which they are queried."""

    connectors: tuple[Selection, ...] = field(
        default=(),
        metadata={"help": "objects with kv_connector and kv_connector_extra_config, in order"},
    )


class Multi(KVConnector):
    """Makes the sides of each connector. A look-up may take as long as that of the slowest."""

    info = Info(summary="several connectors in order")
    capabilities = frozenset({"several", "slow_look_up", "survives"})
    Options = MultiOptions

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return two connectors, in the folder."""
        home = "dovetail_plugins.kv_connectors"
        return {
            "connectors": [
                {
                    "kind": "kv_connector",
                    "name": "offloading",
                    "target": f"{home}.offloading:Offloading",
                    "options": {"host_bytes": 1 << 20},
                },
                {
                    "kind": "kv_connector",
                    "name": "shared_storage",
                    "target": f"{home}.shared_storage:SharedStorage",
                    "options": {"folder": folder},
                },
            ]
        }

    def index(self, facts: StoreFacts) -> MultiIndex:
        """Return the engine's side. Raises: ConfigError"""
        return MultiIndex([one.index(facts) for one in self._connectors()])

    def store(self, facts: StoreFacts) -> MultiStore:
        """Return a rank's side. Raises: ConfigError"""
        return MultiStore([one.store(facts) for one in self._connectors()])

    def _connectors(self) -> list[KVConnector]:
        if not self.options.connectors:
            raise ConfigError(
                "no connectors are named.",
                where="--kv-transfer-config.kv_connector_extra_config.connectors",
                fix='give a list of objects such as {"kv_connector": "offloading"}.',
            )
        return [registry.make(selection) for selection in self.options.connectors]


class MultiIndex(StoreIndex):
    """Queries every index."""

    def __init__(self, indexes: Sequence[StoreIndex]) -> None:
        self._indexes = indexes

    def has(self, key: bytes) -> bool:
        """Return whether one has a block."""
        return any(index.has(key) for index in self._indexes)

    def keep(self, key: bytes) -> bool:
        """Return whether one wants a block. Mutates: self"""
        return any([index.keep(key) for index in self._indexes])

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Let each connector prepare; return the source of each. Mutates: self"""
        sources = [index.look(keys, params) for index in self._indexes]
        return json.dumps(sources) if any(sources) else ""

    def ticket(self, num_tokens: int) -> dict[str, Any]:
        """Return the first non-empty ticket."""
        tickets = (index.ticket(num_tokens) for index in self._indexes)
        return next(filter(None, tickets), {})

    def used(self, keys: Sequence[bytes]) -> None:
        """Report to the connectors that have them. Mutates: self"""
        for index in self._indexes:
            index.used([key for key in keys if index.has(key)])

    def lost(self, keys: Sequence[bytes]) -> None:
        """Report to all connectors. Mutates: self"""
        for index in self._indexes:
            index.lost(keys)

    def take_dropped(self) -> Sequence[bytes]:
        """Return the dropped keys, each prefixed with its connector's number. Mutates: self"""
        return [
            _DROP + bytes((number,)) + key
            for number, index in enumerate(self._indexes)
            for key in index.take_dropped()
        ]

    def close(self) -> None:
        """Close all connectors."""
        for index in self._indexes:
            index.close()


class MultiStore(BlockStore):
    """Reads from the first that has a block, writes to all."""

    def __init__(self, stores: Sequence[BlockStore]) -> None:
        self._stores = stores

    def read(self, key: bytes) -> Buffer | None:
        """Return a block of the first that has it; a fault of one is that one's."""
        for store in self._stores:
            try:
                block = store.read(key)
            except OSError as error:
                log.warning("one of several stores could not be read: %s", error)
                continue
            if block is not None:
                return block
        return None

    def gather(
        self, keys: Sequence[bytes], source: str, ranks_for: RanksFor
    ) -> Iterator[tuple[bytes, Parts]]:
        """Yield the blocks of the first store, then of the second those that are missing, and so
        on; a fault of one is that one's."""
        sources = json_value(source) if source else [""] * len(self._stores)
        missing = dict.fromkeys(keys)
        for store, own in zip(self._stores, sources, strict=True):
            try:
                for key, parts in store.gather(tuple(missing), own, ranks_for):
                    if parts is not None:
                        del missing[key]
                        yield key, parts
            except OSError as error:
                log.warning("one of several stores could not be read: %s", error)
        for key in missing:
            yield key, None

    def write(self, key: bytes, block: Buffer) -> None:
        """Write a block to all. Raises: OSError of the first that failed, after all were tried"""
        faults = []
        for store in self._stores:
            try:
                store.write(key, block)
            except OSError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def drop(self, key: bytes) -> None:
        """Drop a block from the store whose number prefixes its key, or from all."""
        if key.startswith(_DROP):
            number = key[len(_DROP)]
            self._stores[number].drop(key[len(_DROP) + 1 :])
            return
        for store in self._stores:
            store.drop(key)

    def close(self) -> None:
        """Close all stores."""
        for store in self._stores:
            store.close()
