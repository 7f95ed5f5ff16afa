"""What batches do with the disk: files that are whole after any crash, and lines likewise.

A full disk and a lack of descriptors or memory pass: `is_passing` tells them from faults that stay.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dovetail.json_values import InvalidJson, json_struct

logger = logging.getLogger("dovetail_plugins.batch")
NEW = ".new"
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})


def is_passing(error: BaseException) -> bool:
    """Return whether an error, or each of a group, comes from a lack that may pass."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_passing(one) for one in error.exceptions)
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _PASSING
    )


def write_whole(path: Path, data: bytes, *, syncs: bool = True) -> None:
    """Write a file that is there whole or not at all, also after a crash of the process, and with
    `syncs` of the machine. Raises: OSError"""
    new = path.with_suffix(f".{secrets.token_hex(4)}{NEW}")
    try:
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            if syncs:
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if syncs:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the machine keep what was renamed and made in a folder. Raises: OSError"""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ResultFile:
    """A file that lines are added to. A line is there whole or, when the disk is full, not at
    all."""

    def __init__(self, path: Path) -> None:
        """Raises: OSError"""
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, line: bytes) -> None:
        """Write a line and its end. Raises: OSError. Mutates: self"""
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(line) + 1

    def sync(self) -> None:
        """Have the machine keep what was written. Raises: OSError"""
        os.fsync(self._file.fileno())


def mended_lines(path: Path, kind: type[Any]) -> Iterator[Any]:
    """Yield the lines of a file, read as `kind`. A last line that was torn, and lines that cannot
    be read, are taken out of the file first, so that what they answered is answered again.

    Raises: OSError
    """
    raw = path.read_bytes() if path.exists() else b""
    good: list[Any] = []
    lines: list[bytes] = []
    for line in raw.split(b"\n"):
        try:
            good.append(json_struct(line, kind))
            lines.append(line + b"\n")
        except InvalidJson:
            if line:
                logger.warning("%s: %d bytes that hold no result are taken out", path, len(line))
    whole = b"".join(lines)
    if whole != raw:
        write_whole(path, whole)
    yield from good
