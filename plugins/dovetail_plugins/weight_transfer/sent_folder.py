"""The folders into which engines receive weights: in memory if there is room, else on disk.

An engine that has to start again reads its weights there, so a folder stays until the next update.
The process that has made it removes it at its end; if it was killed, the next one does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
PREFIX = "dovetail-sent-"


def new_folder(num_bytes: int) -> str:
    """Return a new private folder for some bytes of weights, on this machine."""
    disk = Path(tempfile.gettempdir())
    for stale in (*_stale(MEMORY), *_stale(disk)):
        remove_sent(str(stale))
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > num_bytes
    folder = tempfile.mkdtemp(
        prefix=f"{_own_prefix()}{os.getpid()}-", dir=MEMORY if has_room else disk
    )
    atexit.register(remove_sent, folder)
    return folder


def remove_sent(path: str) -> None:
    """Remove a folder of received weights; leave any other as it is."""
    if Path(path).name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def version_of_folder(path: str) -> str:
    """Return a version for weights that were sent without one."""
    return Path(path).name.rpartition("-")[2]


def _own_prefix() -> str:
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9]', '', platform.node())}-"


def _stale(base: Path) -> Iterator[Path]:
    """Yield this user's folders from processes of this machine that have ended."""
    for folder in base.glob(f"{_own_prefix()}*-*"):
        pid = folder.name.removeprefix(_own_prefix()).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):
            is_own = folder.stat().st_uid == os.getuid()
            if is_own and pid.isdigit() and not psutil.pid_exists(int(pid)):
                yield folder
