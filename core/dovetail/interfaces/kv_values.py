"""Connector sides over a store that is asked: for files of a folder, or for values under names.

Such a store evicts as it likes, and others write to it, so nothing is assumed of what it holds: the
index asks for each block, and has a block written once that this engine has not had written lately
or that was missed since. A connector to a store of values has to offer a client of five calls.
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
"""How many blocks an engine remembers to have had written."""
IDENTITY_LETTERS = 24


class AskedIndex(StoreIndex):
    """The engine's side, which asks `is_there` whether every rank's part of a block can be read."""

    def __init__(self, is_there: Callable[[bytes], bool]) -> None:
        self._is_there = is_there
        self._written: OrderedDict[bytes, None] = OrderedDict()
        self._missed: deque[bytes] = deque(maxlen=MOST_REMEMBERED)
        self._looked_up: Sequence[bytes] = ()

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Note the keys: whoever misses one asks for none behind it. Mutates: self"""
        del params
        self._looked_up = keys
        return ""

    def has(self, key: bytes) -> bool:
        """Return whether a block is there. One that is not, and those behind it, count as written
        no more: the store was full, has evicted them, or somebody has removed them."""
        is_there = self._is_there(key)
        if not is_there:
            looked_up, self._looked_up = self._looked_up, ()
            first = looked_up.index(key) if key in looked_up else len(looked_up)
            self._missed.extend(looked_up[first:] or (key,))
        return is_there

    def keep(self, key: bytes) -> bool:
        """Return whether this engine has not had the block written lately; whether another has is
        seen when it is written. Mutates: self"""
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


class ValueClient(ABC):
    """A way to a store of values under names. Two threads may use it."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is a value of this name. Raises: OSError"""

    @abstractmethod
    def get(self, name: str) -> Buffer | None:
        """Return a value, None where there is none. Raises: OSError"""

    @abstractmethod
    def put(self, name: str, value: Buffer) -> None:
        """Keep a value, in place of one that is there. Raises: OSError"""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Forget a value, if there is one. Raises: OSError"""

    def close(self) -> None:
        """Let go of everything. Called once."""


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
        """Leave the store. May be called twice."""
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
        """Put a block, unless it is there. Raises: OSError"""
        client, name = self._opened(), self._name(key)
        if not client.has(name):
            client.put(name, block)

    def drop(self, key: bytes) -> None:
        """Remove a block. Raises: OSError"""
        self._opened().remove(self._name(key))

    def _name(self, key: bytes) -> str:
        return value_name(self._facts, key, self._facts.rank)

    def _opened(self) -> ValueClient:
        if self._client is None:
            raise ConnectionError("the store has been left")
        return self._client

    def close(self) -> None:
        """Leave the store. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
