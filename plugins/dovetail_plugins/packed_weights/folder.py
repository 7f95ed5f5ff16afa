"""The folder of packed weights: its entries, their bound, and what is removed first. No torch.

It is $XDG_CACHE_HOME/dovetail/weights, a file for each entry. Source: the XDG Base Directory
Specification.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dovetail_plugins.state_folder import user_folder

SUFFIX = ".packed"
UNFINISHED = ".writing"
STALE_S = 24 * 3600.0
"""An unfinished file that is older has no writer, where the file system cannot tell."""
NOTE = ".checked"
"""The file next to an entry that says which content was compared with its checksums."""
SETTLED_S = 2.0
"""Clocks of file systems are coarse: two changes of a file may have one time."""
SPARE_BYTES = 4 << 30
"""What an entry must leave free on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A finished entry. `used_s`: the time of its last use, in seconds since 1970."""

    path: Path
    num_bytes: int
    used_s: float

    @property
    def key(self) -> str:
        """Return the entry's key."""
        return self.path.name.removesuffix(SUFFIX)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, which may not exist yet."""
    return user_folder("XDG_CACHE_HOME", ".cache", environ) / "weights"


def entries(folder: Path) -> list[Entry]:
    """Return all entries, the one that was used last first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            facts = path.stat()
        except OSError:  # another process has removed it
            continue
        found.append(Entry(path=path, num_bytes=facts.st_size, used_s=facts.st_atime))
    return sorted(found, key=lambda one: -one.used_s)


def note_use(path: Path, *, is_checked: bool = False) -> None:
    """Mark an entry as used now, and whether its bytes were just compared with their checksums; on
    a read-only disk it stays as it is. Its time of change stays, too: those who run from it compare
    that."""
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        if is_checked:
            _note_of(path).write_text(_identity(path.stat()))
    except OSError:
        return


def is_checked(path: Path) -> bool:
    """Return whether an entry's file is as it was when all of it was compared with its checksums: a
    change of any byte changes the time that this compares."""
    try:
        facts, note = path.stat(), _note_of(path).read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return note == _identity(facts) and time.time() - facts.st_ctime > SETTLED_S


def _note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{NOTE}")


def _identity(facts: os.stat_result) -> str:
    return f"{facts.st_ino} {facts.st_size} {facts.st_ctime_ns}"


def make_room(folder: Path, num_bytes: int, bound_bytes: int) -> str | None:
    """Remove entries, the longest unused first, until one of `num_bytes` may be added. Return why
    it may not be, or None. Raises: OSError"""
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder)
    if num_bytes > bound_bytes:
        return f"it takes {num_bytes >> 20} MiB of {bound_bytes >> 20} (--weight-cache-bytes)"
    found = entries(folder)
    while found and sum(one.num_bytes for one in found) + num_bytes > bound_bytes:
        found.pop().path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        return f"the disk has {free >> 20} MiB left, and {SPARE_BYTES >> 20} are to stay free"
    return None


def hold(file: IO[bytes]) -> None:
    """Mark a file as one that is being written, until it is closed or its process ends."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_unfinished(folder: Path) -> int:
    """Remove the files of writers that have ended, and notes without an entry; return the former's
    bytes. One that may not be removed stays, as on a read-only disk."""
    num_bytes = 0
    for note in folder.glob(f"*{SUFFIX}{NOTE}"):
        with contextlib.suppress(OSError):
            if not note.with_suffix("").exists():
                note.unlink()
    for path in folder.glob(f"*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            facts = path.stat()
            if not _is_held(path, facts.st_mtime):
                path.unlink()
                num_bytes += facts.st_size
    return num_bytes


def _is_held(path: Path, changed_s: float) -> bool:
    """Return whether a process writes a file. Raises: OSError"""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return time.time() - changed_s < STALE_S
    return False
