"""Carriers: move blocks from one engine's host memory into another's, outside the messages.

The requesting side makes a landing (memory that its peer writes blocks into) and sends its name
with a request. On one machine that is an anonymous memory file (memfd), so nothing is left over
however either side ends. The peer opens it through the requesting process, and only if it is the
file that was named. Without a landing, blocks are sent in messages.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from dovetail.interfaces.kv_connector import Buffer

BATCH_BYTES = 1 << 24
"""Approximate number of bytes per request."""
MOST_OPEN = 64
"""Maximum number of peers' landings left open; the most recently used ones."""
_FIXED: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)
"""Seals of a file whose size can no longer change; 0 on systems without such files."""


class Landing(ABC):
    """Memory of this side that one rank of another engine lays blocks into."""

    view: memoryview

    @abstractmethod
    def name(self) -> str:
        """Return how a peer finds it, for one question."""

    def wait(self, limit_s: float) -> None:
        """Return once all is there that the answer to the last name speaks of. Raises: OSError"""
        del limit_s

    @abstractmethod
    def close(self) -> None:
        """Let go of the memory. May be called twice."""


class Carrier(ABC):
    """Makes landings for the requesting thread, and fills peers' landings for serving threads."""

    @abstractmethod
    def landing(self, num_bytes: int, *, is_here: bool) -> Landing | None:
        """Return memory for `num_bytes` bytes from a peer, local if `is_here`; None: they come in
        messages. Raises: OSError"""

    @abstractmethod
    def lay(self, blocks: Sequence[Buffer | None], name: str) -> tuple[int, ...]:
        """Write blocks one after the other into the named landing; return their sizes, -1 for one
        that is missing or does not fit. Raises: OSError, ValueError if it cannot be reached"""

    def close(self) -> None:
        """Let go of everything. May be called twice."""


def landing_bytes(block_bytes: int) -> int:
    """Return the size of a landing for blocks of this size: a batch, with room for one more."""
    return 2 * max(BATCH_BYTES, block_bytes)


def lay_into(memory: mmap.mmap | memoryview, blocks: Sequence[Buffer | None]) -> tuple[int, ...]:
    """Write blocks one after the other; return their sizes, -1 for one that is missing or has no
    room. Mutates: memory"""
    sizes, start = [], 0
    for block in blocks:
        if block is None or start + len(block) > len(memory):
            sizes.append(-1)
            continue
        memory[start : start + len(block)] = block
        start += len(block)
        sizes.append(len(block))
    return tuple(sizes)


class _SharedLanding(Landing):
    """A nameless file in memory, of a fixed size."""

    def __init__(self, num_bytes: int) -> None:
        """Raises: OSError"""
        label = f"dovetail-kv-{secrets.token_hex(8)}"
        self._file = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self._file, 0, num_bytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _FIXED)
            self._memory = mmap.mmap(self._file, num_bytes)
        except OSError:
            os.close(self._file)
            raise
        self.view = memoryview(self._memory)
        self._name = f"{os.getpid()}/{self._file}/{label}"

    def name(self) -> str:
        """Return process, file and label."""
        return self._name

    def close(self) -> None:
        """Let go of the file; blocks that are still looked at keep the memory until then."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SharedMemory(Carrier):
    """Between processes of one machine that see each other in /proc."""

    def __init__(self) -> None:
        self._open: dict[str, mmap.mmap] = {}

    def landing(self, num_bytes: int, *, is_here: bool) -> Landing | None:
        """Return an anonymous file for a peer on this machine, if the system has such files."""
        return _SharedLanding(num_bytes) if is_here and _FIXED else None

    def lay(self, blocks: Sequence[Buffer | None], name: str) -> tuple[int, ...]:
        """Lay blocks into an asking process's file. Raises: OSError, ValueError. Mutates: self"""
        return lay_into(self._opened(name), blocks)

    def _opened(self, name: str) -> mmap.mmap:
        """Return a file, mapped. Raises: OSError, ValueError. Mutates: self"""
        memory = self._open.pop(name, None)
        if memory is None:
            for stale in [one for one in self._open if not _is_there(one)]:
                self._open.pop(stale).close()
            memory = _mapped(name)
        self._open[name] = memory
        if len(self._open) > MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return memory

    def close(self) -> None:
        """Let go of the files."""
        for memory in self._open.values():
            memory.close()
        self._open.clear()


def _path_and_label(name: str) -> tuple[str, str]:
    """Return a landing's file path and its label. Raises: ValueError"""
    process, number, label = name.split("/")
    return f"/proc/{int(process)}/fd/{int(number)}", label


def _is_there(name: str) -> bool:
    path, label = _path_and_label(name)
    try:
        return str(Path(path).readlink()).startswith(f"/memfd:{label}")
    except OSError:
        return False


def _mapped(name: str) -> mmap.mmap:
    """Return the memory of a landing. Raises: OSError, ValueError"""
    path, _ = _path_and_label(name)
    if not _is_there(name):
        raise FileNotFoundError(f"{path} is not the file that was named")
    number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(number, fcntl.F_GET_SEALS) & _FIXED != _FIXED:
            raise ValueError("its size could change")
        return mmap.mmap(number, 0)
    finally:
        os.close(number)
