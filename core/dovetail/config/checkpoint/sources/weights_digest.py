"""WeightsDigest: a fingerprint of a checkpoint's or adapter's content, from samples of its files.

Of a large file only the beginning, the end and evenly spaced pieces are read, because training
changes all matrices of a model. File names do not count, so copies have the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

PIECE_BYTES = 64 << 10
NUM_PIECES = 64
"""Number of pieces to read; a file no larger than these is read completely."""


def files_digest(files: Iterable[Path]) -> str:
    """Return the digest of these files, in order. Raises: OSError"""
    digest = hashlib.sha256()
    for file in files:
        _add(file, digest)
    return digest.hexdigest()


def folder_digest(folder: str | Path) -> str:
    """Return the digest of all files in a folder, or of one file. Raises: OSError"""
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
