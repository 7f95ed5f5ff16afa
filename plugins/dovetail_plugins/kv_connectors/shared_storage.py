"""SharedStorage: blocks as files in a folder that several engines read and write.

There are no locks: a file is there as a whole or not at all, and equal names mean equal content.
Files are removed only by readers that find them damaged, and by `dovetail cache rm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import BlockStore, Buffer, KVConnector, StoreFacts
from dovetail.interfaces.plugin import Info
from dovetail_plugins.kv_connectors._block_folder import BlockFolder
from dovetail_plugins.stored_values import AskedIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStorageOptions:
    """The folder of the files."""

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

    def index(self, facts: StoreFacts) -> AskedIndex:
        """Return the engine's side, which looks whether files are there. Raises: ConfigError"""
        return AskedIndex(self._folder(facts).has)

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
