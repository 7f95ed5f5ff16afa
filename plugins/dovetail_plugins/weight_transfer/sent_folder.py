"""The folders into which engines receive weights: in memory if there is room, else on disk.

An engine that has to start again reads its weights there, so a folder stays until the next update.
The process that has made its name removes it at its end.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from dovetail_plugins.weight_transfer.memory_file import MEMORY

PREFIX = "dovetail-sent-"


def new_folder(num_bytes: int) -> str:
    """Return a new private folder for some bytes of weights, on this machine."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > num_bytes
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY if has_room else None)
    atexit.register(remove_sent, folder)
    return folder


def remove_sent(path: str) -> None:
    """Remove a folder of received weights; leave any other as it is."""
    if Path(path).name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)
