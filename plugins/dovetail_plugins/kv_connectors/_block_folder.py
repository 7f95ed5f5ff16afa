"""BlockFolder: sealed blocks as files, one for each block and rank (`interfaces.block_files`).

A file is written under a temporary name and renamed once it is whole. Readers detect damage from a
broken disk or a lost write.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_connector import Buffer, StoreFacts
from dovetail_plugins.block_files import ABOUT, UNFINISHED, block_file

IDENTITY_LETTERS = 24
STALE_S = 3600.0
"""An unfinished file of this age belongs to a process that is gone."""


class BlockFolder:
    """The files of one identity under a folder; with `is_own`, only of one engine."""

    def __init__(self, folder: str, facts: StoreFacts, *, is_own: bool) -> None:
        self._facts = facts
        self._root = Path(folder).expanduser() / facts.identity[:IDENTITY_LETTERS]
        if is_own:
            self._root /= f"engine{facts.engine_id}"
        self._numbers = itertools.count()

    def make(self) -> None:
        """Create the folder and describe its content in it. Raises: ConfigError"""
        about = {
            "model": self._facts.model,
            "block_bytes": self._facts.block_bytes,
            "world_size": self._facts.world_size,
        }
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._put(self._root / ABOUT, json.dumps(about).encode())
        except OSError as error:
            raise ConfigError(
                f"the folder {self._root} cannot be written: {error.strerror or error}.",
                where="--kv-transfer-config.kv_connector_extra_config.folder",
                fix="name a folder that this user may write to.",
            ) from error

    def has(self, key: bytes) -> bool:
        """Return whether every rank's file is there."""
        place = self._place(key)
        return all(Path(f"{place}.{rank}").exists() for rank in range(self._facts.world_size))

    def read(self, key: bytes) -> bytes | None:
        """Return this rank's block, None if there is none. Raises: OSError"""
        try:
            return Path(self._own(key)).read_bytes()
        except FileNotFoundError:
            return None

    def has_own(self, key: bytes) -> bool:
        """Return whether this rank's file is there."""
        return Path(self._own(key)).exists()

    def touch(self, key: bytes) -> None:
        """Note in this rank's file that it was used now."""
        try:
            os.utime(self._own(key))
        except OSError:
            return  # another engine has dropped it meanwhile

    def write(self, key: bytes, block: Buffer) -> None:
        """Write this rank's block; a reader sees all of it or none. Raises: OSError"""
        place = Path(self._own(key))
        try:
            self._put(place, block)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._put(place, block)

    def drop(self, key: bytes) -> None:
        """Remove this rank's file. Raises: OSError"""
        Path(self._own(key)).unlink(missing_ok=True)

    def scan(self) -> list[bytes]:
        """Return the keys whose files are all there, least recently used first; leftovers of others
        are removed. Raises: OSError"""
        used_s: dict[bytes, float] = {}
        counts: dict[bytes, int] = {}
        for path in list(self._files()):
            status = path.stat()
            block = block_file(path)
            if block is None or status.st_size != self._facts.block_bytes:
                self._remove_leftover(path, status.st_mtime)
                continue
            key = block.key
            used_s[key] = max(used_s.get(key, 0.0), status.st_mtime)
            counts[key] = counts.get(key, 0) + 1
        whole = [key for key, count in counts.items() if count == self._facts.world_size]
        for key in counts.keys() - set(whole):
            for rank in range(self._facts.world_size):
                Path(f"{self._place(key)}.{rank}").unlink(missing_ok=True)
        return sorted(whole, key=lambda key: used_s[key])

    def _files(self) -> Iterator[Path]:
        for folder in self._root.iterdir():
            if folder.is_dir():
                yield from folder.iterdir()

    def _remove_leftover(self, path: Path, written_s: float) -> None:
        if path.suffix != UNFINISHED or time.time() - written_s > STALE_S:
            path.unlink(missing_ok=True)

    def _put(self, place: Path, content: Buffer) -> None:
        unfinished = Path(f"{place}.{os.getpid()}-{next(self._numbers)}{UNFINISHED}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(place)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _own(self, key: bytes) -> str:
        return f"{self._place(key)}.{self._facts.rank}"

    def _place(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._root}/{name[2:4]}/{name}"
