"""Files of KV blocks: how they are named in a folder, for connectors that write some and for the
command that lists, checks and removes them.

`FOLDER/IDENTITY/[ENGINE/]ab/KEY.RANK`, a sealed block each; the folder above `ab` has a file that
says whose blocks they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.interfaces.data.sealed_block import unsealed
from dovetail.json_values import json_value

ABOUT = "about.json"
UNFINISHED = ".new"
"""The end of the name of a file that is still being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFile:
    """A file with a rank's part of a block."""

    path: Path
    key: bytes
    rank: int

    def is_whole(self) -> bool:
        """Return whether the file's content matches its name. Raises: OSError"""
        return unsealed(self.path.read_bytes(), self.key, self.rank) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFiles:
    """The files of one model under one set of flags, of one engine or of several."""

    root: Path
    model: str
    world_size: int

    def files(self) -> Iterator[Path]:
        """Yield every file of blocks, unfinished ones too."""
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir() and len(folder.name) == 2:
                yield from sorted(folder.iterdir())

    def blocks(self) -> Iterator[BlockFile]:
        """Yield the files that are named as blocks are."""
        for path in self.files():
            found = block_file(path)
            if found is not None:
                yield found


def block_file(path: Path) -> BlockFile | None:
    """Return the fields of a file's name, None if it is not a block's name."""
    try:
        return BlockFile(path=path, key=bytes.fromhex(path.stem), rank=int(path.suffix[1:]))
    except ValueError:
        return None


def stores_in(folder: Path) -> list[BlockFiles]:
    """Return the stores of blocks in a folder. Raises: OSError"""
    found = []
    for about in sorted(folder.rglob(ABOUT)):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            description = json_value(about.read_bytes())
            found.append(
                BlockFiles(
                    root=about.parent,
                    model=str(description["model"]),
                    world_size=int(description["world_size"]),
                )
            )
    return found
