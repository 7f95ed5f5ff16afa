"""Offloading: blocks go to host memory and, with a folder, to files that outlive the engine.

Every full block is stored, in memory and in the folder, until the eviction policy (`kv_eviction`,
by default least recently used first) removes it. The engine's index mirrors what each rank's memory
stores and drops; if the two differ, because a store was too slow for instance, a block is missed
and computed again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts, StoreIndex
from dovetail.interfaces.plugin import Info
from dovetail_plugins.kv_connectors._block_folder import BlockFolder
from dovetail_plugins.kv_connectors._eviction import eviction_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadingOptions:
    """How much is stored, over all ranks."""

    host_bytes: int = field(
        default=4 << 30, metadata={"help": "host memory for blocks", "unit": "bytes", "ge": 0}
    )
    folder: str | None = field(
        default=None, metadata={"help": "folder for blocks; they are found again after a restart"}
    )
    disk_bytes: int = field(
        default=64 << 30,
        metadata={"help": "size of the folder's blocks", "unit": "bytes", "ge": 0},
    )
    eviction: str = field(
        default="lru", metadata={"help": "which blocks go when there is no room: lru, slru, ..."}
    )


class Offloading(KVConnector):
    """Host memory first, then a folder; an eviction says which blocks leave them."""

    info = Info(summary="host memory, then a folder that survives a restart")
    capabilities = frozenset({"survives"})
    Options = OffloadingOptions

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return a small memory, and the folder."""
        return {"host_bytes": 1 << 20, "folder": folder, "disk_bytes": 1 << 24}

    def index(self, facts: StoreFacts) -> OffloadingIndex:
        """Return the engine's side, which knows the folder's contents. Raises: ConfigError"""
        return OffloadingIndex(self.options, facts)

    def store(self, facts: StoreFacts) -> OffloadingStore:
        """Return a rank's side."""
        return OffloadingStore(self.options, facts)


class OffloadingIndex(StoreIndex):
    """Which blocks the ranks' memory and folders hold."""

    def __init__(self, options: OffloadingOptions, facts: StoreFacts) -> None:
        size = facts.block_bytes * facts.world_size
        num_files = options.disk_bytes // size if options.folder else 0
        self._memory = eviction_of(options.eviction, options.host_bytes // size)
        self._files = eviction_of(options.eviction, num_files)
        self._dropped: list[bytes] = []
        if not (options.host_bytes // size or (options.folder and options.disk_bytes // size)):
            raise ConfigError(
                f"not one block of {size} bytes can be kept.",
                where="--kv-transfer-config.kv_connector_extra_config.host_bytes",
                fix="raise it.",
            )
        if options.folder:
            folder = BlockFolder(options.folder, facts, is_own=True)
            folder.make()
            self._find_old(folder)

    def _find_old(self, folder: BlockFolder) -> None:
        try:
            found = folder.scan()
        except OSError as error:
            log.warning("what an earlier engine kept cannot be read: %s", error)
            return
        for key in found:
            self._dropped += self._files.add(key)
        log.info("%d KV blocks of an earlier engine were found", len(found))

    def has(self, key: bytes) -> bool:
        """Return whether the ranks hold a block."""
        return self._memory.has(key) or self._files.has(key)

    def keep(self, key: bytes) -> bool:
        """Return whether a block is a new one. Mutates: self"""
        if self.has(key):
            self._add(key)
            return False
        self._add(key)
        return True

    def used(self, keys: Sequence[bytes]) -> None:
        """Put blocks last among those to go. Mutates: self"""
        for key in keys:
            self._add(key)

    def lost(self, keys: Sequence[bytes]) -> None:
        """Forget blocks. Mutates: self"""
        for key in keys:
            self._memory.discard(key)
            self._files.discard(key)
            self._dropped.append(key)

    def take_dropped(self) -> Sequence[bytes]:
        """Return the blocks that have left the folder. Mutates: self"""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _add(self, key: bytes) -> None:
        self._memory.add(key)
        for old in self._files.add(key):
            self._memory.discard(old)
            self._dropped.append(old)


class OffloadingStore(BlockStore):
    """A rank's memory and files."""

    def __init__(self, options: OffloadingOptions, facts: StoreFacts) -> None:
        self._lock = threading.Lock()
        limit = options.host_bytes // (facts.block_bytes * facts.world_size)
        self._eviction = eviction_of(options.eviction, limit)
        self._blocks: dict[bytes, Buffer] = {}
        self._folder: BlockFolder | None = None
        if options.folder and options.disk_bytes:
            self._folder = BlockFolder(options.folder, facts, is_own=True)
            self._folder.make()

    def read(self, key: bytes) -> Buffer | None:
        """Return a block from memory, or from its file. Mutates: self"""
        with self._lock:
            block = self._blocks.get(key)
        if block is None and self._folder is not None:
            block = self._folder.read(key)
        if block is not None:
            self._remember(key, block)
            if self._folder is not None:
                self._folder.touch(key)
        return block

    def write(self, key: bytes, block: Buffer) -> None:
        """Keep a block in memory, and write its file."""
        self._remember(key, bytes(block))
        if self._folder is not None:
            self._folder.write(key, block)

    def drop(self, key: bytes) -> None:
        """Forget a block and remove its file."""
        with self._lock:
            self._blocks.pop(key, None)
            self._eviction.discard(key)
        if self._folder is not None:
            self._folder.drop(key)

    def close(self) -> None:
        """Release the memory; files stay."""
        with self._lock:
            self._blocks.clear()

    def _remember(self, key: bytes, block: Buffer) -> None:
        with self._lock:
            for old in self._eviction.add(key):
                self._blocks.pop(old, None)
            if self._eviction.has(key):
                self._blocks[key] = block
