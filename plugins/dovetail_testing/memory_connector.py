"""MemoryConnector: the plainest KV connector, a dictionary without a bound."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts, StoreIndex
from dovetail.interfaces.plugin import Info


class MemoryIndex(StoreIndex):
    """A set of keys."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def has(self, key: bytes) -> bool:
        """Return whether it was stored."""
        return key in self.keys

    def keep(self, key: bytes) -> bool:
        """Keep a key."""
        is_new = key not in self.keys
        self.keys.add(key)
        return is_new

    def lost(self, keys: Sequence[bytes]) -> None:
        """Forget keys."""
        self.keys -= set(keys)


class MemoryStore(BlockStore):
    """A dictionary."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, Buffer] = {}

    def read(self, key: bytes) -> Buffer | None:
        """Return a block."""
        return self.blocks.get(key)

    def write(self, key: bytes, block: Buffer) -> None:
        """Keep a block."""
        self.blocks[key] = bytes(block)

    def drop(self, key: bytes) -> None:
        """Forget a block."""
        self.blocks.pop(key, None)


class MemoryConnector(KVConnector):
    """Keeps everything in memory."""

    info = Info(summary="a dictionary without a bound")

    def index(self, facts: StoreFacts) -> MemoryIndex:
        """Return the engine's side."""
        return MemoryIndex()

    def store(self, facts: StoreFacts) -> MemoryStore:
        """Return a rank's side."""
        return MemoryStore()


MEMORY_CONNECTOR = Selection(
    kind="kv_connector", name="memory", target=f"{__name__}:{MemoryConnector.__name__}"
)
