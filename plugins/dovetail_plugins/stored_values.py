"""Connector sides for a store that must be queried: files in a folder, or named values.

Such a store evicts as it likes and has other writers, so nothing is assumed about its content. The
index queries it for each block, and has a block written if this engine has not written it recently
or has missed it since. A connector to a store of values only implements a client of five calls.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.interfaces.kv_connector import BlockStore, Buffer, StoreFacts, StoreIndex

log = logging.getLogger(__name__)

MOST_REMEMBERED = 1 << 18
"""How many written blocks an engine remembers."""
IDENTITY_LETTERS = 24


class AskedIndex(StoreIndex):
    """The engine's side. `is_there` checks whether every rank's part of a block can be read."""

    def __init__(self, is_there: Callable[[bytes], bool]) -> None:
        self._is_there = is_there
        self._written: OrderedDict[bytes, None] = OrderedDict()
        self._missed: deque[bytes] = deque(maxlen=MOST_REMEMBERED)
        self._looked_up: Sequence[bytes] = ()

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Note the keys: after a miss, the following keys are not queried. Mutates: self"""
        del params
        self._looked_up = keys
        return ""

    def has(self, key: bytes) -> bool:
        """Return whether a block is stored. A missing block, and the keys after it, no longer count
        as written: the store was full, has evicted them, or someone has removed them."""
        is_there = self._is_there(key)
        if not is_there:
            looked_up, self._looked_up = self._looked_up, ()
            first = looked_up.index(key) if key in looked_up else len(looked_up)
            self._missed.extend(looked_up[first:] or (key,))
        return is_there

    def keep(self, key: bytes) -> bool:
        """Return whether this engine has not written the block recently; whether another engine has
        is checked when it is written. Mutates: self"""
        while self._missed:
            self._written.pop(self._missed.popleft(), None)
        is_new = key not in self._written
        self._written[key] = None
        self._written.move_to_end(key)
        if len(self._written) > MOST_REMEMBERED:
            self._written.popitem(last=False)
        return is_new

    def lost(self, keys: Sequence[bytes]) -> None:
        """Let these blocks be written again. Mutates: self"""
        for key in keys:
            self._written.pop(key, None)


class ValueClient(ABC):
    """A client of a store of named values. Two threads may use it."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is a value of this name. Raises: OSError"""

    @abstractmethod
    def get(self, name: str) -> Buffer | None:
        """Return a value, or None if there is none. Raises: OSError"""

    @abstractmethod
    def put(self, name: str, value: Buffer) -> None:
        """Store a value, replacing an existing one. Raises: OSError"""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a value, if it exists. Raises: OSError"""

    def close(self) -> None:
        """Release everything. Called once."""


def value_name(facts: StoreFacts, key: bytes, rank: int) -> str:
    """Return the name of a rank's part of a block."""
    identity = facts.identity[:IDENTITY_LETTERS]
    return f"dovetail/{identity}/{key.hex()}/{rank}of{facts.world_size}"


class ValueIndex(AskedIndex):
    """The engine's side of a store of values."""

    def __init__(self, client: ValueClient, facts: StoreFacts) -> None:
        super().__init__(self._is_whole)
        self._client: ValueClient | None = client
        self._facts = facts
        self._has_told = False

    def _is_whole(self, key: bytes) -> bool:
        if (client := self._client) is None:
            return False
        ranks = range(self._facts.world_size)
        try:
            return all(client.has(value_name(self._facts, key, rank)) for rank in ranks)
        except OSError as error:
            if not self._has_told:
                log.warning("KV blocks cannot be looked up: %s", error)
            self._has_told = True
            return False

    def close(self) -> None:
        """Close the client. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class ValueStore(BlockStore):
    """A rank's side of a store of values."""

    def __init__(self, client: ValueClient, facts: StoreFacts) -> None:
        self._client: ValueClient | None = client
        self._facts = facts

    def read(self, key: bytes) -> Buffer | None:
        """Return a block. Raises: OSError"""
        return self._opened().get(self._name(key))

    def write(self, key: bytes, block: Buffer) -> None:
        """Store a block, unless it is there. Raises: OSError"""
        client, name = self._opened(), self._name(key)
        if not client.has(name):
            client.put(name, block)

    def drop(self, key: bytes) -> None:
        """Delete a block. Raises: OSError"""
        self._opened().remove(self._name(key))

    def _name(self, key: bytes) -> str:
        return value_name(self._facts, key, self._facts.rank)

    def _opened(self) -> ValueClient:
        if self._client is None:
            raise ConnectionError("the store has been left")
        return self._client

    def close(self) -> None:
        """Close the client. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
