"""Journal: finished requests on disk, before their clients hear of the end.

Each process that answers requests appends lines to files of its own in the folder, with one write
each, so that a killed process loses none. The lock of a file tells others that it is in use.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from dovetail.json_values import json_struct

PREFIX, END, NEW = "journal-", ".jsonl", ".new-"
MAX_BYTES = 4 << 20
"""A longer file is continued in a new one."""


class Entry(NamedTuple):
    """One finished request: the day (UTC, 2026-12-31), and the tokens that clients count."""

    day: str
    owner: str
    model: str
    prompt: int
    cached: int
    generated: int


class _Open(NamedTuple):
    path: Path
    file: IO[bytes]


class Journal:
    """This process's journal. `append` is called by one thread, the other methods by another."""

    def __init__(self, folder: Path) -> None:
        """Begin a file in a folder, which is made if need be. Raises: OSError"""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._current = _begun(folder)
        self._full: list[_Open] = []

    def append(self, entry: Entry) -> None:
        """Write an entry; from then on it survives the end of this process. Raises: OSError"""
        line = msgspec.json.encode(entry) + b"\n"
        with self._lock:
            number = self._current.file.fileno()
            size = os.fstat(number).st_size
            if os.write(number, line) < len(line):
                os.ftruncate(number, size)
                raise OSError(f"no room is left for {self._current.path}")

    def paths(self) -> list[Path]:
        """Return the files, the one in use last; a long one is replaced first. Mutates: self"""
        with self._lock:
            if os.fstat(self._current.file.fileno()).st_size > MAX_BYTES:
                self._full.append(self._current)
                self._current = _begun(self._folder)
            return [one.path for one in (*self._full, self._current)]

    def drop_full(self) -> list[str]:
        """Delete the files that are no longer written, whose entries are in the ledger; return
        their names. Mutates: self"""
        dropped, self._full = self._full, []
        for one in dropped:
            one.path.unlink(missing_ok=True)
            one.file.close()
        return [one.path.name for one in dropped]

    def close(self) -> list[str]:
        """Delete all files, whose entries are in the ledger; return their names. Mutates: self"""
        self._full.append(self._current)
        return self.drop_full()


def _begun(folder: Path) -> _Open:
    """Return a new file, locked before others can see it. Raises: OSError"""
    name = f"{uuid.uuid4().hex}{END}"
    new, path = folder / f"{NEW}{name}", folder / f"{PREFIX}{name}"
    file = new.open("xb", buffering=0)
    fcntl.flock(file, fcntl.LOCK_EX)
    new.rename(path)
    return _Open(path, file)


@contextmanager
def abandoned(folder: Path) -> Iterator[list[Path]]:
    """Yield the files of processes that have ended, which nobody else reads meanwhile. Raises:
    OSError"""
    files: list[IO[bytes]] = []
    try:
        for path in sorted(folder.glob(f"{PREFIX}*{END}")):
            try:
                file = path.open("rb")
            except FileNotFoundError:  # another process has read and deleted it
                continue
            files.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # in use
                files.pop().close()
        yield [path for path in map(Path, (one.name for one in files)) if path.exists()]
    finally:
        for one in files:
            one.close()


def entries_after(path: Path, offset: int) -> tuple[list[Entry], int]:
    """Return the whole entries of a file after a place, and the place after them. Raises:
    OSError, InvalidJson"""
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    end = text.rfind(b"\n") + 1
    lines = text[:end].splitlines()
    rows = [json_struct(line, tuple[str, str, str, int, int, int]) for line in lines]
    return [Entry(*row) for row in rows], offset + end
