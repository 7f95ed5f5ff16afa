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


def write_whole(
    path: Path,
    data: bytes,
    *,
    syncs: bool = True,
    mode: int | None = None,
    folder: Path | None = None,
) -> None:
    """Write a file atomically, safe against a crash of the process, and with `syncs` against a
    crash of the machine. It has the permissions `mode` from the start (None: the usual ones).
    Until it is complete it is in `folder`, on the same disk (None: the file's own). Raises: OSError
    """
    unfinished = f"{path.stem}.{secrets.token_hex(4)}{NEW}"
    new = (folder or path.parent) / unfinished
    try:
        with os.fdopen(_created(new, mode), "wb") as file:
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


def _created(path: Path, mode: int | None) -> int:
    """Create a file with these permissions (None: the usual ones); return its descriptor."""
    usual = 0o666
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, usual if mode is None else 0)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return descriptor
