"""KeptMedia: a cache of read media by key, limited in bytes.

In the memory of one process, or in shared memory for all API processes of a server: files in a
folder that exists while a process uses it. A killed process leaves its folder; the next one that
opens a folder removes it, since its lock is free.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path
from threading import Lock

import msgspec

from dovetail.interfaces.data.media import ReadMedium
from dovetail.processes.own_folder import is_own, own_folder

MAX_NAMES = 1 << 14
"""Maximum number of client names that are remembered."""
LOCK = "lock"


class KeptMedia(ABC):
    """Media by key, and keys by the clients' names. Thread-safe."""

    @abstractmethod
    def get(self, key: str) -> ReadMedium | None:
        """Return a cached medium, or None."""

    @abstractmethod
    def put(self, key: str, read: ReadMedium) -> None:
        """Cache a medium; the least recently used ones make room. Mutates: self"""

    @abstractmethod
    def named(self, name: str) -> str | None:
        """Return the key of a name, or None."""

    @abstractmethod
    def name(self, name: str, key: str) -> None:
        """Remember the key of a name. Mutates: self"""


class OwnMedia(KeptMedia):
    """A cache in this process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[str, ReadMedium] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def get(self, key: str) -> ReadMedium | None:
        """Return a cached medium, or None. Mutates: its place in the order"""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def put(self, key: str, read: ReadMedium) -> None:
        """Cache a medium. Mutates: self"""
        with self._lock:
            if key in self._kept:
                self._num_bytes -= self._kept[key].num_bytes
            self._kept[key] = read
            self._num_bytes += read.num_bytes
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes

    def named(self, name: str) -> str | None:
        """Return the key of a name, or None."""
        return self._names.get(name)

    def name(self, name: str, key: str) -> None:
        """Remember the key of a name. Mutates: self"""
        with self._lock:
            self._names[name] = key
            self._names.move_to_end(name)
            if len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)


class SharedMedia(KeptMedia):
    """A cache as files of a folder in shared memory, common to all processes that name it."""

    def __init__(self, folder: str, max_bytes: int, max_item_bytes: int) -> None:
        """Open the folder, creating it if needed. Raises: OSError"""
        self._folder = Path(folder)
        self._max_bytes, self._max_item_bytes = max_bytes, max_item_bytes
        base = own_folder(self._folder.parent)
        with (base / LOCK).open("a") as guard:  # one process at a time opens a folder
            fcntl.flock(guard, fcntl.LOCK_EX)
            remove_unused(base)
            own_folder(self._folder)
            descriptor = os.open(self._folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._held = descriptor
        atexit.register(self.close)

    def get(self, key: str) -> ReadMedium | None:
        """Return a cached medium, or None. Mutates: its place in the order"""
        path = self._path("m", key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        return msgspec.msgpack.decode(data, type=ReadMedium)

    def put(self, key: str, read: ReadMedium) -> None:
        """Cache a medium unless it is too large. Mutates: the folder"""
        if read.num_bytes > min(self._max_item_bytes, self._max_bytes):
            return
        self._write(self._path("m", key), msgspec.msgpack.encode(read))
        self._make_room()

    def named(self, name: str) -> str | None:
        """Return the key of a name, or None."""
        try:
            return self._path("n", name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def name(self, name: str, key: str) -> None:
        """Remember the key of a name. Mutates: the folder"""
        self._write(self._path("n", name), key.encode())

    def close(self) -> None:
        """Leave the folder; the last process to leave removes it. May be called twice."""
        if self._held < 0:
            return
        descriptor, self._held = self._held, -1
        if _locks_alone(descriptor):
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(descriptor)

    def _path(self, sort: str, text: str) -> Path:
        return self._folder / f"{sort}-{hashlib.sha256(text.encode()).hexdigest()}"

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file atomically: others see it whole or not at all."""
        handle, name = tempfile.mkstemp(dir=self._folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)

    def _make_room(self) -> None:
        """Remove the least recently used media, and names beyond their maximum."""
        files: dict[str, list[tuple[float, int, str]]] = {"m": [], "n": []}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name[:2] in ("m-", "n-"):
                    stat = entry.stat()
                    files[entry.name[0]].append((stat.st_mtime, stat.st_size, entry.path))
        spare = sum(size for _, size, _ in files["m"]) - self._max_bytes
        for _, size, path in sorted(files["m"]):
            if spare <= 0:
                break
            Path(path).unlink(missing_ok=True)
            spare -= size
        for _, _, path in sorted(files["n"])[:-MAX_NAMES]:
            Path(path).unlink(missing_ok=True)


def remove_unused(base: Path) -> None:
    """Remove the folders below `base` that no process uses."""
    for lock in base.glob(f"*/{LOCK}"):
        try:
            if not is_own(lock.parent):
                continue
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it is gone, a link, or another user's
            continue
        if _locks_alone(descriptor):
            shutil.rmtree(lock.parent, ignore_errors=True)
        os.close(descriptor)


def _locks_alone(descriptor: int) -> bool:
    """Return whether no other process holds a lock; then this process has it exclusively."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
