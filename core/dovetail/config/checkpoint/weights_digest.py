"""WeightsDigest: a number for the content of a checkpoint or an adapter, from a look at its files.

Of a large file the beginning, the end and evenly spread pieces are looked at, not all: whoever
trains a model changes all of its matrices. Names do not count, so that copies are alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

PIECE_BYTES = 64 << 10
NUM_PIECES = 64
"""How many pieces are looked at; a file of no more than these is read whole."""


def files_digest(files: Iterable[Path]) -> str:
    """Return the digest of files, in their order. Raises: OSError"""
    digest = hashlib.sha256()
    for file in files:
        _add(file, digest)
    return digest.hexdigest()


def folder_digest(folder: str | Path) -> str:
    """Return the digest of all files of a folder, or of a file. Raises: OSError"""
    place = Path(folder)
    if place.is_file():
        return files_digest((place,))
    return files_digest(sorted(file for file in place.rglob("*") if file.is_file()))


def _add(file: Path, digest: hashlib._Hash) -> None:
    size = file.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        if size <= PIECE_BYTES * NUM_PIECES:
            digest.update(stream.read())
            return
        for i in range(NUM_PIECES):
            stream.seek((size - PIECE_BYTES) * i // (NUM_PIECES - 1))
            digest.update(stream.read(PIECE_BYTES))
