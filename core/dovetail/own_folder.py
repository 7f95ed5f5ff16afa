"""Folders of this user's alone, in places where every user may make some."""

from __future__ import annotations

import os
from pathlib import Path


def own_folder(folder: Path) -> Path:
    """Return the folder, made where it is missing. Raises: OSError for a link, or one of another
    user, who could read, change and replace what is in it"""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} is a link or belongs to another user")
    return folder


def is_own(folder: Path) -> bool:
    """Return whether the folder is there, no link, and this user's."""
    return not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
