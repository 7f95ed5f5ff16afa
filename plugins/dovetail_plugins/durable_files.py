"""Files that survive a crash: written completely or not at all, and their names on the disk."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

NEW = ".new"
"""The end of the name of a file that is being written."""


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk: its renamed and created files. Raises: OSError"""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, *, syncs: bool = True) -> None:
    """Write a file atomically, safe against a crash of the process, and with `syncs` against a
    crash of the machine. Raises: OSError"""
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
