"""Crash-safe file operations of batches: files and lines that are written completely or not at all.

A full disk, or a lack of descriptors or memory, is temporary: `is_passing` separates such errors
from permanent ones.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.durable_files import write_whole

logger = logging.getLogger("dovetail_plugins.batch")
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})


def is_passing(error: BaseException) -> bool:
    """Return whether an error, or every error of a group, is due to a temporary shortage."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_passing(one) for one in error.exceptions)
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _PASSING
    )


class ResultFile:
    """A file to append lines to. A line is written completely or, if the disk is full, not at
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
        """Append a line and a line end. Raises: OSError. Mutates: self"""
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(line) + 1

    def sync(self) -> None:
        """Sync the written lines to disk. Raises: OSError"""
        os.fsync(self._file.fileno())


def mended_lines(path: Path, kind: type[Any]) -> Iterator[Any]:
    """Yield the lines of a file, decoded as `kind`. Torn and unreadable lines are removed first.

    Their requests are then answered again. Raises: OSError
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
