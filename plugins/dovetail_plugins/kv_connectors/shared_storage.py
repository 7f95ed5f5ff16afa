"""SharedStorage: blocks as files in a folder that several engines read and write.

Nothing is locked: a file is there as a whole or not at all, and equal names mean equal content.
Nobody removes files but who finds them damaged; `dovetail cache rm` does.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts, StoreIndex
from dovetail.interfaces.plugin import Info
from dovetail_plugins.kv_connectors._block_folder import BlockFolder

MOST_REMEMBERED = 1 << 18
"""How many blocks an engine remembers to have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStorageOptions:
    """Where the files are."""

    folder: str = field(
        default="", metadata={"help": "folder of the files, the same for all engines"}
    )


class SharedStorage(KVConnector):
    """A folder of several engines, on one machine or many."""

    info = Info(summary="a folder that several engines share")
    capabilities = frozenset({"shared", "slow_look_up", "survives"})
    Options = SharedStorageOptions

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return the folder."""
        return {"folder": folder}

    def index(self, facts: StoreFacts) -> SharedIndex:
        """Return the engine's side. Raises: ConfigError"""
        return SharedIndex(self._folder(facts))

    def store(self, facts: StoreFacts) -> SharedStore:
        """Return a rank's side. Raises: ConfigError"""
        return SharedStore(self._folder(facts))

    def _folder(self, facts: StoreFacts) -> BlockFolder:
        if not self.options.folder:
            raise ConfigError(
                "no folder is named.",
                where="--kv-transfer-config.kv_connector_extra_config.folder",
                fix="name one that all engines see.",
            )
        folder = BlockFolder(self.options.folder, facts, is_own=False)
        folder.make()
        return folder


class SharedIndex(StoreIndex):
    """Looks whether files are there."""

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self._written: OrderedDict[bytes, None] = OrderedDict()
        self._missed: deque[bytes] = deque(maxlen=MOST_REMEMBERED)
        self._looked_up: Sequence[bytes] = ()

    def look(self, keys: Sequence[bytes], params: Mapping[str, Any]) -> str:
        """Note the keys: whoever misses one asks for none behind it. Mutates: self"""
        del params
        self._looked_up = keys
        return ""

    def has(self, key: bytes) -> bool:
        """Return whether all ranks' files are there. One that is not, and those behind it, count as
        written no more: the folder was full, or somebody has removed them."""
        is_there = self._folder.has(key)
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
        if key in self._written:
            self._written.move_to_end(key)
            return False
        self._written[key] = None
        if len(self._written) > MOST_REMEMBERED:
            self._written.popitem(last=False)
        return True

    def lost(self, keys: Sequence[bytes]) -> None:
        """Have these written again. Mutates: self"""
        for key in keys:
            self._written.pop(key, None)


class SharedStore(BlockStore):
    """Reads and writes one rank's files."""

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder

    def read(self, key: bytes) -> Buffer | None:
        """Return a block's file."""
        return self._folder.read(key)

    def write(self, key: bytes, block: Buffer) -> None:
        """Write a file, unless another engine has."""
        if not self._folder.has_own(key):
            self._folder.write(key, block)

    def drop(self, key: bytes) -> None:
        """Remove a file."""
        self._folder.drop(key)
