"""Folders that belong to this user alone, in places that every user can write to."""

from __future__ import annotations

import os
from pathlib import Path


def own_folder(folder: Path) -> Path:
    """Return the folder, created if missing. Raises: OSError for a link, or for a folder of another
    user, who could read, change and replace its contents"""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} is a link or belongs to another user")
    return folder


def is_own(folder: Path) -> bool:
    """Return whether the folder exists, is not a link, and belongs to this user."""
    return not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
